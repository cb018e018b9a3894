"""Report what a machine is: user, network, GPUs, engine, data disk, target, clusters. Both ends have these types."""

import contextlib
import fcntl
import http.client
import json
import os
import pwd
import re
import shutil
import socket
import struct
import subprocess
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import quote

DOCKER_SOCKET = "/var/run/docker.sock"
CLUSTER_LABEL = "rlbox.cluster"
_ANSWER_S, _GPU_S = 30.0, 20.0
_GPU_KEYS = "index,uuid,memory.total,memory.used,ecc.errors.uncorrected.volatile.total"
# How `ray start --block` reports a part that ended. Source: ray/scripts/scripts.py of 2.43 and 2.60.
_ENDED_PART = re.compile(r"(\w+) \[exit code=(-?\w+)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SIOCGIFADDR = 0x8915
_LISTEN = "0A"
# What no other machine reaches: loopback, and bridges of engines.
_INNER_INTERFACES = ("lo", "docker", "br-", "veth", "virbr", "cni", "flannel")


def read_stripped_text_or_empty(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def read_json_or_empty(path: str) -> Dict[str, Any]:
    try:
        return dict(json.loads(read_stripped_text_or_empty(path)))
    except (TypeError, ValueError):
        return {}


def _parse_int_or_zero(text: str) -> int:
    return int(text) if text.lstrip("-").isdigit() else 0


# ---- the machine


class ProcessStat(NamedTuple):
    parent_pid: int
    session_id: int
    start_ticks: int


class MachineFacts(NamedTuple):
    """`identity_until_restart` is the same for all names of a machine, another after a start and in each container."""

    identity_until_restart: str
    uid: int
    gid: int
    user: str
    memory: int
    engine_socket: str


def read_boot_id() -> str:
    return read_stripped_text_or_empty("/proc/sys/kernel/random/boot_id")


def read_live_process_stat(pid: int) -> Optional[ProcessStat]:
    """Return None where there is no such process; a zombie is none."""
    words = read_stripped_text_or_empty(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(words) < 20 or words[0] in ("Z", "X"):
        return None
    return ProcessStat(int(words[1]), int(words[3]), int(words[19]))


def read_user_and_memory_facts() -> MachineFacts:
    first, network = read_live_process_stat(1), os.stat("/proc/self/ns/net").st_ino
    return MachineFacts(
        identity_until_restart=f"{read_boot_id()}/{network}/{first.start_ticks if first else 0}",
        uid=os.getuid(),
        gid=os.getgid(),
        user=_user_name(os.getuid()),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        engine_socket=_find_engine_socket(),
    )


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


# ---- its network


class InterfaceAddress(NamedTuple):
    """An address of IPv4; `mtu` in bytes, `speed` in Mbit/s, 0 where the driver is silent."""

    interface: str
    address: str
    mtu: int = 0
    speed: int = 0


def list_external_ipv4_addresses_ssh_first() -> List[InterfaceAddress]:
    """Return the first address of each interface that others may reach, that by which ssh came first."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as kernel:
        for __, name in socket.if_nameindex():
            if not name.startswith(_INNER_INTERFACES):
                with contextlib.suppress(OSError):  # it has none
                    reply = fcntl.ioctl(kernel, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                    settings = [read_stripped_text_or_empty(f"/sys/class/net/{name}/{key}") for key in ("mtu", "speed")]
                    mtu, speed = map(_parse_int_or_zero, settings)
                    found.append(InterfaceAddress(name, socket.inet_ntoa(reply[20:24]), mtu, max(0, speed)))
    by_ssh = (os.environ.get("SSH_CONNECTION", "").split() + [""] * 4)[2]
    return sorted(found, key=lambda row: row.address != by_ssh)


def list_tcp_ports_inodes_uids() -> List[Tuple[int, str, int]]:
    """Return port, inode and owner of each socket that listens."""
    found = []
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read_stripped_text_or_empty(path).splitlines()[1:]:
            row = line.split()
            if row[3] == _LISTEN:
                found.append((int(row[1].split(":")[1], 16), row[9], int(row[7])))
    return found


# ---- its GPUs


class Gpu(NamedTuple):
    """`uncorrected_errors` of its memory; `users` are the processes on it, each with its owner."""

    number: int
    memory_bytes: int
    used_bytes: int
    uncorrected_errors: int = 0
    users: Sequence[str] = ()


def query_gpus() -> Tuple[List[Gpu], str]:
    """Return the GPUs, and why they are not known: empty where nvidia-smi answered, or there is no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        has_driver = os.path.exists("/proc/driver/nvidia/version")
        return [], "nvidia-smi is missing" if has_driver else ""
    try:
        rows = _query_smi(program, "--query-gpu=" + _GPU_KEYS)
        processes = _query_smi(program, "--query-compute-apps=gpu_uuid,pid,process_name")
    except (OSError, subprocess.SubprocessError):
        return [], "nvidia-smi does not answer"
    gpus = []
    for number, uuid, total, used, errors in (row for row in rows if len(row) == 5):
        users = ["{} ({}, {})".format(_process_owner(row[1]), *row[1:]) for row in processes if row[0] == uuid]
        total_mib, used_mib = _parse_int_or_zero(total), _parse_int_or_zero(used)
        gpus.append(Gpu(int(number), total_mib << 20, used_mib << 20, _parse_int_or_zero(errors), users))
    return gpus, ""


def _query_smi(program: str, query: str) -> List[List[str]]:
    argv = [program, query, "--format=csv,noheader,nounits"]
    output = subprocess.check_output(argv, stderr=subprocess.DEVNULL, timeout=_GPU_S).decode("utf-8", "replace")
    return [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]


def _process_owner(pid: str) -> str:
    try:
        return _user_name(os.stat(f"/proc/{pid}").st_uid)
    except OSError:  # it is in another container
        return "somebody"


# ---- disks and files


class DiskFacts(NamedTuple):
    """A directory that is to be a data disk, and the space of its file system in bytes; `error`: why it is not read."""

    path: str
    there: bool = False
    error: str = ""
    free: int = 0
    size: int = 0
    writable: bool = False

    @property
    def is_over_99_percent_full(self) -> bool:
        return self.there and self.free < 0.01 * self.size


def read_disk_facts_or_error(path: str) -> DiskFacts:
    try:
        space = os.statvfs(path)
    except OSError as error:
        return DiskFacts(path, error=error.strerror or str(error))
    return DiskFacts(
        path=path,
        there=os.path.isdir(path),
        free=space.f_bavail * space.f_frsize,
        size=space.f_blocks * space.f_frsize,
        writable=os.access(path, os.W_OK | os.X_OK),
    )


class Installation(NamedTuple):
    """A target that `apply` installed: `directory` is where rlbox is; `is_complete`: the last `apply` ended well."""

    directory: str
    lock_checksum: str
    data_disk: str = ""
    is_complete: bool = True


def find_installation(target_name: str) -> Optional[Installation]:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    own = os.path.join(cache, "rlbox", "places", target_name)
    for prefix in (str(read_json_or_empty(own + ".json").get("prefix") or own), own, ""):
        directory = prefix + "/opt/rlbox"
        record = read_json_or_empty(directory + "/share/applied.json")
        if record.get("target") == target_name:
            is_complete = record.get("state") == "laid"
            return Installation(directory, str(record.get("lock", "")), str(record.get("data", "")), is_complete)
    return None


# ---- the engine


class EngineFacts(NamedTuple):
    """`state` is ok, absent, denied or silent; what follows `error` is empty unless it is ok."""

    state: str
    error: str = ""
    version: str = ""
    security: Sequence[str] = ()
    runtimes: Sequence[str] = ()
    cdi: Sequence[str] = ()


class RayInstance(NamedTuple):
    """Ray of a cluster here: a container of its engine, or processes of this user, whose `id` is their directory."""

    id: str
    name: str
    image: str
    labels: Dict[str, str]
    status: str
    exit_code: int = 0
    oom: bool = False
    finished: str = ""
    first_ended_part_with_code: str = ""

    @property
    def has_not_ended(self) -> bool:
        return self.status in ("created", "running", "restarting", "paused")

    @property
    def is_inplace(self) -> bool:
        return self.id.startswith("/")


class NodeFacts(NamedTuple):
    """One node; `listening` are ports, `existing_paths` those of a job's that it has.

    `installation` is None where the target was not installed there; `own_clock_before_after_s` is its time before and
    after it looked.
    """

    machine: MachineFacts
    engine: EngineFacts
    gpus: List[Gpu]
    gpu_error: str
    disk: DiskFacts
    addresses: List[InterfaceAddress]
    listening: List[int]
    clusters: List[RayInstance]
    installation: Optional[Installation]
    existing_paths: List[str]
    own_clock_before_after_s: Tuple[float, float]

    def find_address(self, address: str) -> Optional[InterfaceAddress]:
        return next((one for one in self.addresses if one.address == address), None)


def _find_engine_socket() -> str:
    host = os.environ.get("DOCKER_HOST", "")
    if host.startswith("unix://"):
        return host[len("unix://") :]
    own = os.path.join(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}", "docker.sock")
    return own if os.path.exists(own) and not os.path.exists(DOCKER_SOCKET) else DOCKER_SOCKET


class _EngineConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(_find_engine_socket())


def _get_from_engine(path: str) -> str:
    """Return the body; `OSError` where the engine does not answer, `ValueError` where it refuses."""
    with contextlib.closing(_EngineConnection("engine", timeout=_ANSWER_S)) as connection:
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read().decode("utf-8", "replace")
        except http.client.HTTPException as error:
            raise OSError(str(error) or type(error).__name__) from error
    if answer.status >= 400:
        raise ValueError(f"{answer.status} {body.strip()[:200]}")
    return body


def query_engine() -> EngineFacts:
    path = _find_engine_socket()
    if not os.path.exists(path):
        return EngineFacts("absent", path)
    try:
        info = json.loads(_get_from_engine("/info"))
    except PermissionError as error:
        return EngineFacts("denied", str(error))
    except (OSError, ValueError) as error:
        return EngineFacts("silent", str(error))
    return EngineFacts(
        state="ok",
        version=info.get("ServerVersion", ""),
        security=info.get("SecurityOptions") or [],
        runtimes=sorted(info.get("Runtimes") or {}),
        cdi=info.get("CDISpecDirs") or [],
    )


def list_ray_containers() -> List[RayInstance]:
    found = []
    filters = quote(json.dumps({"label": [CLUSTER_LABEL]}))
    for row in json.loads(_get_from_engine("/containers/json?all=1&filters=" + filters)):
        path = "/containers/" + row["Id"]
        try:
            container = json.loads(_get_from_engine(path + "/json"))
        except ValueError:  # it has been removed meanwhile
            continue
        state, output = container["State"], ""
        if state["Status"] == "exited":
            with contextlib.suppress(OSError, ValueError):
                output = _get_from_engine(path + "/logs?stdout=1&stderr=1&tail=200")
        found.append(
            RayInstance(
                id=container["Id"],
                name=container["Name"][1:],
                image=container["Image"],
                labels=container["Config"]["Labels"],
                status=state["Status"],
                exit_code=state["ExitCode"],
                oom=state["OOMKilled"],
                finished=state["FinishedAt"],
                first_ended_part_with_code=find_first_ended_part_with_code(output),
            )
        )
    return found


def find_first_ended_part_with_code(ray_output: str) -> str:
    """Return which part of Ray ended first, with its exit code (`raylet -9`); empty where `ray start` reported none."""
    text = _COLOURS.sub("", ray_output)
    match = _ENDED_PART.search(text, max(0, text.rfind("exited unexpectedly")))
    return " ".join(match.groups()) if match else ""
