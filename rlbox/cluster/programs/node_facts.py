"""What a node is: its user, processors, memory, clock, limits and GPUs, without a program of rlbox's own there."""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import socket
import time
from typing import TYPE_CHECKING

from rlbox.cluster.programs import node_run
from rlbox.cluster.programs.node_procs import boot, born

if TYPE_CHECKING:
    from rlbox.cluster.programs.node_wire import Row

_GPU_S = 20.0
_GPU_KEYS = ("index", "uuid", "name", "memory.total", "memory.used", "utilization.gpu", "driver_version")
_HELD_KEYS = ("gpu_uuid", "pid", "used_memory", "process_name")
_XID_KEY = "ecc.errors.uncorrected.volatile.total"


def machine_facts() -> Row:
    """Return who and what this node is."""
    return {
        "identity": _own_network(),
        "host": socket.gethostname(),
        "uid": os.getuid(),
        "gid": os.getgid(),
        "user": _user(),
        "clock": time.time(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "ephemeral": _ephemeral(),
        "rights": rights(),
    }


def _own_network() -> str:
    """Return what is the same for two names of one host, and differs between two: its start, and its network.

    A container that is started anew is another: its network may have the number that the one before had.
    """
    return f"{boot()}/{os.stat('/proc/self/ns/net').st_ino}/{born(1)}"


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _ephemeral() -> list[int]:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            return [int(word) for word in file.read().split()]
    except (OSError, ValueError):
        return [32768, 60999]


def rights() -> Row:
    """Return by what rules for the network are made here: `tool` nft or iptables, empty for none, `before` its call."""
    places = [*os.environ.get("PATH", "").split(":"), "/usr/sbin", "/sbin"]
    path = ":".join(place for place in places if place)
    tool = next((name for name in ("nft", "iptables") if shutil.which(name, path=path)), "")
    before = [] if os.getuid() == 0 else ["sudo", "-n"]
    may = not before or (bool(shutil.which("sudo")) and node_run.tried([*before, "true"], 5.0) is not None)
    return {"tool": (shutil.which(tool, path=path) or "") if tool and may else "", "before": before}


def gpu_facts() -> Row:
    """Return the GPUs as the driver's own program tells them, who holds them, and what it said where it failed."""
    program = shutil.which("nvidia-smi")
    there = os.path.exists("/proc/driver/nvidia/version")
    if program is None:
        return {"gpus": [], "holders": [], "said": "nvidia-smi is missing" if there else ""}
    rows = _smi(program, "--query-gpu", _GPU_KEYS)
    if rows is None:
        return {"gpus": [], "holders": [], "said": "nvidia-smi does not answer"}
    errors = {row[0]: row[1] for row in _smi(program, "--query-gpu", ("uuid", _XID_KEY)) or []}
    gpus = [
        {
            "index": _whole(row[0]),
            "uuid": row[1],
            "name": row[2],
            "memory": _whole(row[3]) << 20,
            "used": _whole(row[4]) << 20,
            "busy": _whole(row[5]),
            "driver": row[6],
            "errors": _whole(errors.get(row[1], "")),
        }
        for row in rows
    ]
    holders = [
        {"uuid": row[0], "pid": _whole(row[1]), "used": _whole(row[2]) << 20, "words": row[3], "user": _owner(row[1])}
        for row in _smi(program, "--query-compute-apps", _HELD_KEYS) or []
    ]
    return {"gpus": gpus, "holders": holders, "said": ""}


def _smi(program: str, what: str, keys: tuple[str, ...]) -> list[list[str]] | None:
    said = node_run.tried([program, f"{what}={','.join(keys)}", "--format=csv,noheader,nounits"], _GPU_S)
    if said is None:
        return None
    rows = [[cell.strip() for cell in line.split(",")] for line in said.splitlines() if line.strip()]
    return [row for row in rows if len(row) == len(keys)]


def _whole(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _owner(pid: str) -> str:
    try:
        return pwd.getpwuid(os.stat(f"/proc/{pid}").st_uid).pw_name
    except (OSError, KeyError):
        return ""
