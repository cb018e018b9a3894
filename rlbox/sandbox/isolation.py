"""Isolation of a program: which mechanisms this machine has, and a process that starts behind all of them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import socket
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.sandbox import kernel, seccomp
from rlbox.sandbox.limits import ProgramLimits
from rlbox.sandbox.program_cgroup import enter
from rlbox.sandbox.root import DEVICES

NAMESPACES, LANDLOCK, SECCOMP, FORKS, GROUP = "namespaces", "landlock", "seccomp", "forks", "group"
LAYERS = (NAMESPACES, LANDLOCK, SECCOMP, FORKS, GROUP)
"""`namespaces`: own processes, network, mounts, IPC. `landlock`: files. `seccomp`: system calls. `forks`: each new
process or thread is asked for, so that there are never more than the limit, and none once the end has begun. `group`: a
control group that counts, bounds and ends all processes of a request."""
WEAK = "limits only"


@dataclass(frozen=True, kw_only=True)
class IsolationLevel:
    """The layers that a program had, and why it had not the others: layer to the kernel's answer."""

    layers: tuple[str, ...]
    missing: dict[str, str]

    @property
    def contained(self) -> bool:
        """Whether files, network and other processes are out of a program's reach."""
        return SECCOMP in self.layers and (NAMESPACES in self.layers or LANDLOCK in self.layers)

    @property
    def name(self) -> str:
        """Return the layers in one word, as it stands in every result."""
        return "+".join(self.layers) if self.contained else WEAK

    @classmethod
    def of(cls, layers: Iterable[str], missing: dict[str, str]) -> IsolationLevel:
        """Return the strength with its layers in their order."""
        had = set(layers)
        return cls(layers=tuple(layer for layer in LAYERS if layer in had), missing=missing)


ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",  # a library with a thread for each core of the machine takes its memory limit for stacks
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
SCOPED = 6  # version of Landlock that keeps signals inside
_CUTS = 3  # the one that knows truncation
_FILES = 256
_GATE = 200  # the least number of the descriptor over which a child speaks with its keeper


@dataclass(frozen=True, kw_only=True)
class ProgramStart:
    """One program to be started.

    Attributes
    ----------
    fds
        Descriptors it gets, as 0, 1, 2 and so on; it has no others.
    folder
        Its working folder, the one place it may write; empty: there is none.
    root
        Root of its file system where it has mounts of its own, else empty.
    read
        Files and folders it may read.
    layers
        Layers that are tried; `weak` runs it also when they are no wall.
    doors
        Descriptors of its control group, which it enters first of all; `lacks` says why it has no whole one.
    """

    argv: tuple[str, ...]
    fds: tuple[int, ...]
    folder: str
    root: str
    read: tuple[str, ...]
    limits: ProgramLimits
    cpu_s: float
    layers: tuple[str, ...]
    weak: bool
    lacks: Mapping[str, str]
    doors: tuple[int, ...] = ()


class IsolationError(Exception):
    """A program could not be started behind walls."""


def fork_program(start: ProgramStart) -> tuple[int, IsolationLevel, int]:
    """Start a program; return its id, the strength of its walls, and the listener for its forks, or -1.

    Raises
    ------
    IsolationError
        With what the kernel said.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        ours.close()
        _become(start, theirs)
    theirs.close()
    words, listener = b"", -1
    while True:
        part, fds, __, __ = socket.recv_fds(ours, 1 << 16, 1)
        words += part
        listener = fds[0] if fds else listener
        if not part:
            break
    ours.close()
    told: dict[str, Any] = {}
    for line in words.splitlines():
        told |= parse_json(line)
    if "error" in told or not told:
        if listener >= 0:
            os.close(listener)
        raise IsolationError(told.get("error", _("the process of the program ended before it began")))
    return pid, IsolationLevel.of(told["layers"], told["missing"]), listener


def _become(start: ProgramStart, gate: socket.socket) -> None:
    """Raise the walls around this process, say which, and become the program."""
    try:
        gate = socket.socket(fileno=fcntl.fcntl(gate, fcntl.F_DUPFD_CLOEXEC, _GATE))
        had = _raise_walls(start, gate)
        if not had.contained and not start.weak:
            raise IsolationError(_("this machine has no wall to run it behind: {missing}").format(missing=had.missing))
        gate.sendall(json.dumps({"layers": had.layers, "missing": had.missing}).encode() + b"\n")
        cwd = os.getcwd()
        os.execve(start.argv[0], start.argv, ENVIRONMENT | {"HOME": cwd, "TMPDIR": cwd})  # noqa: S606
    except BaseException as error:  # the process is a copy of the keeper's: it must end here
        with contextlib.suppress(OSError):
            gate.sendall(json.dumps({"error": str(error) or repr(error)}).encode())
    os.kill(os.getpid(), signal.SIGKILL)


def _raise_walls(start: ProgramStart, gate: socket.socket) -> IsolationLevel:
    # The order matters: each step needs a right that a later one takes away. The control group comes first, so that all
    # that follows is counted in it; mounts need privileges, so they come before these are dropped; Landlock and seccomp
    # need no privileges, and come last because they would forbid the steps before them.
    grouped = enter(start.doors)
    os.setsid()
    kernel.die_with_parent()
    _own_descriptors(start.fds)
    # when memory runs out the kernel must choose the program and not the server, which holds every other request
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    had, missing = [GROUP] if start.doors and grouped else [], dict(start.lacks)
    if start.doors and not grouped:
        missing[GROUP] = "the kernel lets nothing enter it"
    had = [layer for layer in had if layer not in missing]  # a group may lack some of its parts
    if start.root:
        kernel.enter_root(start.root)
        had.append(NAMESPACES)
    os.chdir(start.folder or "/")
    # resource limits hold where there is no control group; RLIMIT_CPU is a second above, so that the caller's own
    # measurement, which also counts children, says "timeout" before the kernel kills with SIGXCPU
    _set_limits(start)
    kernel.drop_privileges()
    version = 0
    if LANDLOCK in start.layers:
        try:
            version = kernel.landlock_version()
            write = (start.folder, "/tmp", "/dev/shm") if start.root else (start.folder,)  # noqa: S108 its own
            kernel.landlock(start.read, [path for path in write if start.folder], DEVICES)
            had.append(LANDLOCK)
        except OSError as error:
            version, missing[LANDLOCK] = 0, str(error)
    if SECCOMP in start.layers:
        return _filter(start, gate, version, tuple(had), missing)
    return IsolationLevel.of(had, missing)


def _filter(
    start: ProgramStart, gate: socket.socket, version: int, had: tuple[str, ...], missing: dict[str, str]
) -> IsolationLevel:
    """Put the filters of system calls on; the listener for forks is handed over first, while that is still allowed."""
    machine = os.uname().machine
    try:
        if not seccomp.is_supported_machine(machine):
            raise OSError(f"no filter for {machine}")
        births = _listen(gate, machine, missing) if FORKS in start.layers else ()
        # Landlock before version 3 does not see truncate(2), and before version 6 lets signals through: the filter
        # forbids what the kernel's Landlock does not cover
        inside = version >= _CUTS or bool(start.root)
        own = 0 if version >= SCOPED else os.getpid()
        kernel.install_filter(seccomp.build_filter(machine, pid=own, truncate=inside), listen=False)
        had = (*had, SECCOMP, *births)
    except OSError as error:
        missing[SECCOMP] = str(error)
    return IsolationLevel.of(had, missing)


def _listen(gate: socket.socket, machine: str, missing: dict[str, str]) -> tuple[str, ...]:
    """Have births asked for, and give the keeper the listener; return the layer, or nothing where there is none."""
    try:
        listener = kernel.install_filter(seccomp.build_fork_filter(machine), listen=True)
    except OSError as error:
        missing[FORKS] = str(error)
        return ()
    socket.send_fds(gate, [b"{}\n"], [listener])
    os.close(listener)
    return (FORKS,)


def _own_descriptors(fds: tuple[int, ...]) -> None:
    """Give this process `fds` as 0, 1, 2 and so on, and close all others but the gate, which closes by itself."""
    high = [os.dup2(fd, _GATE + 1 + place, inheritable=False) for place, fd in enumerate(fds)]
    for place, fd in enumerate(high):
        os.dup2(fd, place)
    os.closerange(len(fds), _GATE)  # the old gate among them
    os.closerange(_GATE + 1, 1 << 20)


def _set_limits(start: ProgramStart) -> None:
    for kind, value in limit_values(start.limits, start.cpu_s):
        resource.setrlimit(kind, (value, value))


def limit_values(
    limits: ProgramLimits, cpu_s: float, *, only: Collection[str] = (), but: Collection[str] = ()
) -> list[tuple[int, int]]:
    """Return the kernel's number and the value of each limit of a process, none above what this process may."""
    found = []
    for name, value in (
        ("AS", limits.memory_mb << 20),
        ("CPU", ceil(cpu_s) + 1),
        ("FSIZE", limits.disk_mb << 20),
        ("NOFILE", _FILES),
        ("CORE", 0),
        ("MEMLOCK", 0),
        ("MSGQUEUE", 0),
        ("SIGPENDING", 1024),
        ("RTPRIO", 0),
        ("NICE", 0),
    ):
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is not None and name not in but and (not only or name in only):
            hard = resource.getrlimit(kind)[1]
            found.append((kind, value if hard == resource.RLIM_INFINITY else min(value, hard)))
    return found
