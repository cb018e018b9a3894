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
from urllib.parse import quote

DOCKER_SOCKET = "/var/run/docker.sock"
CLUSTER_LABEL = "rlbox.cluster"
_ANSWER_S, _GPU_S = 30.0, 20.0
_GPU_KEYS = ("index", "uuid", "name", "memory.total", "memory.used", "driver_version")
_ECC_KEY = "ecc.errors.uncorrected.volatile.total"
# How `ray start --block` reports a part that ended. Source: ray/scripts/scripts.py of 2.43 and 2.60.
_ENDED_PART = re.compile(r"(\w+) \[exit code=(-?\w+)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def read_text(path):
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def read_json(path):
    try:
        value = json.loads(read_text(path))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def to_int(text):
    return int(text) if text.lstrip("-").isdigit() else 0


# ---- the machine


def boot_id():
    return read_text("/proc/sys/kernel/random/boot_id")


def read_stat(pid):
    """Return (parent, session, start time in ticks) of a process, None where there is none; a zombie is none."""
    words = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(words) < 20 or words[0] in ("Z", "X"):
        return None
    return int(words[1]), int(words[3]), int(words[19])


def machine_facts():
    first = read_stat(1)
    return {
        # the same for two names of one machine, different after each start, and in each container
        "identity": "{}/{}/{}".format(boot_id(), os.stat("/proc/self/ns/net").st_ino, first[2] if first else 0),
        "uid": os.getuid(),
        "gid": os.getgid(),
        "user": user_name(os.getuid()),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "engine_socket": find_engine_socket(),
    }


def gpu_facts():
    program = shutil.which("nvidia-smi")
    if program is None:
        has_driver = os.path.exists("/proc/driver/nvidia/version")
        return {"gpus": [], "error": "nvidia-smi is missing" if has_driver else ""}
    rows = query_smi(program, "--query-gpu", _GPU_KEYS)
    if rows is None:
        return {"gpus": [], "error": "nvidia-smi does not answer"}
    errors = dict(query_smi(program, "--query-gpu", ("uuid", _ECC_KEY)) or [])
    processes = query_smi(program, "--query-compute-apps", ("gpu_uuid", "pid", "process_name")) or []
    return {"gpus": [gpu_row(row, errors, processes) for row in rows], "error": ""}


def gpu_row(row, errors, processes):
    users = [(owner(pid) or "somebody", pid, name) for uuid, pid, name in processes if uuid == row[1]]
    return {
        "index": to_int(row[0]),
        "name": row[2],
        "memory_bytes": to_int(row[3]) << 20,
        "used_bytes": to_int(row[4]) << 20,
        "driver": row[5],
        "uncorrected_errors": to_int(errors.get(row[1], "")),
        "users": ["{} ({}, {})".format(*user) for user in users],
    }


def query_smi(program, query, keys):
    argv = [program, "{}={}".format(query, ",".join(keys)), "--format=csv,noheader,nounits"]
    try:
        output = subprocess.check_output(argv, stderr=subprocess.DEVNULL, timeout=_GPU_S).decode("utf-8", "replace")
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]
    return [row for row in rows if len(row) == len(keys)]


def owner(pid):
    try:
        return user_name(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return ""


def user_name(uid):
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


# ---- disks and files


def disk_facts(path):
    try:
        found, space = os.stat(path), os.statvfs(path)
    except OSError as error:
        return {"path": path, "there": False, "error": error.strerror or str(error)}
    return {
        "path": path,
        "there": stat.S_ISDIR(found.st_mode),
        "free": space.f_bavail * space.f_frsize,
        "size": space.f_blocks * space.f_frsize,
        "mode": stat.S_IMODE(found.st_mode),
        "uid": found.st_uid,
        "writable": os.access(path, os.W_OK | os.X_OK),
    }


def installation_facts(target):
    """Return where `rlbox apply` installed a target here, or the image of this container has it; None: nowhere."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    own = os.path.join(cache, "rlbox", "places", target)
    for prefix in (str(read_json(own + ".json").get("prefix") or own), own, ""):
        record = read_json(prefix + "/opt/rlbox/share/applied.json")
        if record.get("target") == target:
            complete = record.get("state") == "laid"
            found = {"lock_checksum": str(record.get("lock", "")), "data_disk": str(record.get("data", ""))}
            return dict(found, directory=prefix + "/opt/rlbox", is_complete=complete, is_image_install=False)
    lock = "/opt/rlbox/share/lock.json"
    if read_json(lock).get("target") == target and not os.path.exists("/opt/rlbox/share/applied.json"):
        with open(lock, "rb") as file:
            checksum = hashlib.sha256(file.read()).hexdigest()
        found = {"lock_checksum": checksum, "data_disk": "", "is_complete": True, "is_image_install": True}
        return dict(found, directory="/opt/rlbox")
    return None


# ---- the engine


def find_engine_socket():
    host = os.environ.get("DOCKER_HOST", "")
    if host.startswith("unix://"):
        return host[len("unix://") :]
    own = os.path.join(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}", "docker.sock")
    return own if os.path.exists(own) and not os.path.exists(DOCKER_SOCKET) else DOCKER_SOCKET


class _EngineConnection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(find_engine_socket())


def ask_engine(path):
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


def engine_facts():
    """Return how the engine is: `state` is ok, absent, denied or silent."""
    path = find_engine_socket()
    facts = {"socket": path, "state": "ok", "error": ""}
    if not os.path.exists(path):
        return dict(facts, state="absent")
    try:
        info = json.loads(ask_engine("/info"))
    except PermissionError as error:
        return dict(facts, state="denied", error=str(error))
    except (OSError, ValueError) as error:
        return dict(facts, state="silent", error=str(error))
    return dict(
        facts,
        version=info.get("ServerVersion", ""),
        security=info.get("SecurityOptions") or [],
        runtimes=sorted(info.get("Runtimes") or {}),
        cdi=info.get("CDISpecDirs") or [],
    )


def list_containers():
    found = []
    filters = quote(json.dumps({"label": [CLUSTER_LABEL]}))
    for row in json.loads(ask_engine("/containers/json?all=1&filters=" + filters)):
        try:
            state = json.loads(ask_engine("/containers/{}/json".format(row["Id"])))["State"]
        except (ValueError, KeyError):  # it has been removed meanwhile
            continue
        exited = state.get("Status") == "exited"
        found.append(
            {
                "id": row["Id"],
                "name": (row.get("Names") or ["/?"])[0][1:],
                "image": row.get("ImageID", ""),
                "labels": row.get("Labels") or {},
                "status": state.get("Status", ""),
                "exit_code": state.get("ExitCode", 0),
                "oom": bool(state.get("OOMKilled")),
                "finished": state.get("FinishedAt", ""),
                "first_ended_part": ended_part(container_output(row["Id"])) if exited else "",
            }
        )
    return found


def container_output(container):
    try:
        return ask_engine(f"/containers/{container}/logs?stdout=1&stderr=1&tail=200")
    except (OSError, ValueError):
        return ""


def ended_part(text):
    """Return which part of Ray ended first, with its exit code, as `ray start` reported it; empty where it did not."""
    text = _COLOURS.sub("", text)
    match = _ENDED_PART.search(text, max(0, text.rfind("exited unexpectedly")))
    return " ".join(match.groups()) if match else ""
