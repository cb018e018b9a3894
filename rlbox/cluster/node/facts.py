"""Report what a machine is: user, limits, network, GPUs, engine, data disk, target, clusters."""

import hashlib
import http.client
import json
import os
import pwd
import re
import shutil
import socket
import stat
import subprocess
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence
from urllib.parse import quote

if TYPE_CHECKING:
    from typing import Literal  # Python 3.6 has none

DOCKER_SOCKET = "/var/run/docker.sock"
CLUSTER_LABEL = "rlbox.cluster"
FileSystemBytes = int
PartAndExitCode = str
_ANSWER_S, _GPU_S = 30.0, 20.0
_GPU_KEYS = ("index", "uuid", "name", "memory.total", "memory.used", "driver_version")
_ECC_KEY = "ecc.errors.uncorrected.volatile.total"
# How `ray start --block` reports a part that ended. Source: ray/scripts/scripts.py of 2.43 and 2.60.
_ENDED_PART = re.compile(r"(\w+) \[exit code=(-?\w+)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def read_text_or_empty(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def read_json_or_empty(path: str) -> Dict[str, Any]:
    try:
        value = json.loads(read_text_or_empty(path))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def parse_int_or_zero(text: str) -> int:
    return int(text) if text.lstrip("-").isdigit() else 0


# ---- the machine


class ProcessStat(NamedTuple):
    parent_pid: int
    session_id: int
    start_ticks: int


class MachineFacts(NamedTuple):
    """`identity` is the same for two names of one machine, different after each start, and in each container."""

    identity: str
    uid: int
    gid: int
    user: str
    cores: int
    memory: int
    engine_socket: str


def read_boot_id() -> str:
    return read_text_or_empty("/proc/sys/kernel/random/boot_id")


def read_live_process_stat(pid: int) -> Optional[ProcessStat]:
    """Return None where there is no such process; a zombie is none."""
    words = read_text_or_empty(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(words) < 20 or words[0] in ("Z", "X"):
        return None
    return ProcessStat(int(words[1]), int(words[3]), int(words[19]))


def read_machine_facts() -> MachineFacts:
    first, network = read_live_process_stat(1), os.stat("/proc/self/ns/net").st_ino
    return MachineFacts(
        identity=f"{read_boot_id()}/{network}/{first.start_ticks if first else 0}",
        uid=os.getuid(),
        gid=os.getgid(),
        user=_user_name(os.getuid()),
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        engine_socket=_find_engine_socket(),
    )


# ---- its GPUs


class Gpu(NamedTuple):
    """`users` are the processes on it, each with its owner."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    name: str
    memory_bytes: int
    used_bytes: int
    driver: str
    uncorrected_errors: int
    users: List[str]


class GpuQuery(NamedTuple):
    """`error` is empty where nvidia-smi answered, or the machine has no driver."""

    gpus: List[Gpu]
    error: str


def query_gpus() -> GpuQuery:
    program = shutil.which("nvidia-smi")
    if program is None:
        has_driver = os.path.exists("/proc/driver/nvidia/version")
        return GpuQuery([], "nvidia-smi is missing" if has_driver else "")
    rows = _query_smi(program, "--query-gpu", _GPU_KEYS)
    if rows is None:
        return GpuQuery([], "nvidia-smi does not answer")
    errors = dict(_query_smi(program, "--query-gpu", ("uuid", _ECC_KEY)) or [])
    processes = _query_smi(program, "--query-compute-apps", ("gpu_uuid", "pid", "process_name")) or []
    return GpuQuery([_parse_gpu(row, errors, processes) for row in rows], "")


def _parse_gpu(row: List[str], errors: Dict[str, str], processes: List[List[str]]) -> Gpu:
    users = [(_process_owner(pid) or "somebody", pid, name) for uuid, pid, name in processes if uuid == row[1]]
    return Gpu(
        index=parse_int_or_zero(row[0]),
        name=row[2],
        memory_bytes=parse_int_or_zero(row[3]) << 20,
        used_bytes=parse_int_or_zero(row[4]) << 20,
        driver=row[5],
        uncorrected_errors=parse_int_or_zero(errors.get(row[1], "")),
        users=["{} ({}, {})".format(*user) for user in users],
    )


def _query_smi(program: str, query: str, keys: Sequence[str]) -> Optional[List[List[str]]]:
    argv = [program, "{}={}".format(query, ",".join(keys)), "--format=csv,noheader,nounits"]
    try:
        output = subprocess.check_output(argv, stderr=subprocess.DEVNULL, timeout=_GPU_S).decode("utf-8", "replace")
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]
    return [row for row in rows if len(row) == len(keys)]


def _process_owner(pid: str) -> str:
    try:
        return _user_name(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return ""


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


# ---- disks and files


class DirectoryAccessAndSpace(NamedTuple):
    """A directory and the space of its file system in bytes; `error`: why it cannot be read."""

    path: str
    there: bool
    error: str
    free: FileSystemBytes
    size: FileSystemBytes
    mode: int
    uid: int
    writable: bool


class Installation(NamedTuple):
    directory: str
    lock_checksum: str
    data_disk: str
    is_complete: bool
    is_image_install: bool


def read_directory_facts(path: str) -> DirectoryAccessAndSpace:
    try:
        found, space = os.stat(path), os.statvfs(path)
    except OSError as error:
        return DirectoryAccessAndSpace(path, False, error.strerror or str(error), 0, 0, 0, 0, False)
    return DirectoryAccessAndSpace(
        path=path,
        there=stat.S_ISDIR(found.st_mode),
        error="",
        free=space.f_bavail * space.f_frsize,
        size=space.f_blocks * space.f_frsize,
        mode=stat.S_IMODE(found.st_mode),
        uid=found.st_uid,
        writable=os.access(path, os.W_OK | os.X_OK),
    )


def find_installation(target_name: str) -> Optional[Installation]:
    """Return where `rlbox apply` installed a target here, or the image of this container has it; None: nowhere."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    own = os.path.join(cache, "rlbox", "places", target_name)
    for prefix in (str(read_json_or_empty(own + ".json").get("prefix") or own), own, ""):
        record = read_json_or_empty(prefix + "/opt/rlbox/share/applied.json")
        if record.get("target") == target_name:
            return Installation(
                directory=prefix + "/opt/rlbox",
                lock_checksum=str(record.get("lock", "")),
                data_disk=str(record.get("data", "")),
                is_complete=record.get("state") == "laid",
                is_image_install=False,
            )
    lock = "/opt/rlbox/share/lock.json"
    if read_json_or_empty(lock).get("target") == target_name and not os.path.exists("/opt/rlbox/share/applied.json"):
        with open(lock, "rb") as file:
            checksum = hashlib.sha256(file.read()).hexdigest()
        return Installation("/opt/rlbox", checksum, data_disk="", is_complete=True, is_image_install=True)
    return None


# ---- the engine


class EngineFacts(NamedTuple):
    """The last four are empty unless `state` is ok."""

    socket: str
    state: "Literal['ok', 'absent', 'denied', 'silent']"
    error: str
    version: str
    security: List[str]
    runtimes: List[str]
    cdi: List[str]


class RayInstance(NamedTuple):
    """Ray of a cluster here: a container of its engine, or processes of this user."""

    id: str
    name: str
    image: str
    labels: Dict[str, str]
    status: str
    exit_code: int
    oom: bool
    finished: str
    first_ended_part: PartAndExitCode


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
    connection = _EngineConnection("engine", timeout=_ANSWER_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read().decode("utf-8", "replace")
    except http.client.HTTPException as error:
        raise OSError(str(error) or type(error).__name__) from error
    finally:
        connection.close()
    if answer.status >= 400:
        raise ValueError(f"{answer.status} {body.strip()[:200]}")
    return body


def query_engine() -> EngineFacts:
    path = _find_engine_socket()
    facts = EngineFacts(path, "absent", error="", version="", security=[], runtimes=[], cdi=[])
    if not os.path.exists(path):
        return facts
    try:
        info = json.loads(_get_from_engine("/info"))
    except PermissionError as error:
        return facts._replace(state="denied", error=str(error))
    except (OSError, ValueError) as error:
        return facts._replace(state="silent", error=str(error))
    return facts._replace(
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
        try:
            state = json.loads(_get_from_engine("/containers/{}/json".format(row["Id"])))["State"]
        except (ValueError, KeyError):  # it has been removed meanwhile
            continue
        exited = state.get("Status") == "exited"
        found.append(
            RayInstance(
                id=row["Id"],
                name=(row.get("Names") or ["/?"])[0][1:],
                image=row.get("ImageID", ""),
                labels=row.get("Labels") or {},
                status=state.get("Status", ""),
                exit_code=state.get("ExitCode", 0),
                oom=bool(state.get("OOMKilled")),
                finished=state.get("FinishedAt", ""),
                first_ended_part=find_first_ended_part_with_code(_read_container_output(row["Id"])) if exited else "",
            )
        )
    return found


def _read_container_output(container_id: str) -> str:
    try:
        return _get_from_engine(f"/containers/{container_id}/logs?stdout=1&stderr=1&tail=200")
    except (OSError, ValueError):
        return ""


def find_first_ended_part_with_code(ray_output: str) -> PartAndExitCode:
    """Return which part of Ray ended first, with its exit code, as `ray start` reported it; empty where it did not."""
    text = _COLOURS.sub("", ray_output)
    match = _ENDED_PART.search(text, max(0, text.rfind("exited unexpectedly")))
    return " ".join(match.groups()) if match else ""
