"""Start one program behind its walls: what the child does between fork and exec, in this order."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import struct
from collections.abc import Iterable, Sequence
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from rlbox.sandbox import seccomp
from rlbox.sandbox.cgroup import ReusedMemoryCpuCgroup
from rlbox.sandbox.plan import CGROUP, FORKS, LANDLOCK, LAYERS, SECCOMP, Plan, has_landlock_and_seccomp
from rlbox.sandbox.request import RequestLimits
from rlbox.system.libc import prctl, syscall

CHECKER_FOLDER = str(Path(__file__).parent / "programs")
"""What runs behind the walls with the programs' interpreter; programs may read it."""
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",  # a library with a thread for each core of the machine takes its memory limit for stacks
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",  # glibc reserves 64 MiB of addresses for each thread otherwise
}
_OPEN_FILES = 256
_FIRST_FREE_FD = 200
"""Above the descriptors of any program."""
_CAPSET = 126


class StartedProgram(NamedTuple):
    pid: int
    layers: list[str]
    missing: dict[str, str]
    fork_listener: int | None


class StartError(Exception):
    """A program could not be started behind walls; says nothing about the program."""


def start_isolated_program(
    plan: Plan, program_index: int, child_fds: Sequence[int], program_dir: Path, cgroup: ReusedMemoryCpuCgroup
) -> StartedProgram:
    """Start a program of a plan as the leader of a process group; it gets `child_fds` as 0, 1, 2 and so on."""
    report, child_report = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if not pid:
        _become_program(plan, program_index, child_fds, program_dir, cgroup, child_report)
    child_report.close()
    values: dict[str, Any] = {}
    listener = None
    with report:
        message, fds, _, _ = socket.recv_fds(report, 1 << 16, 1)
        while message:  # ends with the exec, or with the process
            values |= json.loads(message)
            listener = fds[0] if fds else listener
            message, fds, _, _ = socket.recv_fds(report, 1 << 16, 1)
    if not values or "error" in values:
        os.kill(pid, signal.SIGKILL)
        raise StartError(values.get("error") or "its process ended before the program began")
    return StartedProgram(pid, values["layers"], values["missing"], listener)


def _become_program(
    plan: Plan, number: int, fds: Sequence[int], folder: Path, cgroup: ReusedMemoryCpuCgroup, report: socket.socket
) -> None:
    """Raise the walls around this process, report the layers, and become the program; never return."""
    try:
        faults: dict[str, str] = {}  # of each layer; empty where it is there
        if CGROUP in plan.wanted_layers:  # before all else, so that all else is counted in it
            faults[CGROUP] = cgroup.enter_and_explain_missing_limits()
        report = _move_fds(fds, report)
        is_checker = plan.check is not None and number == 0  # it writes nothing: the program under test has the folder
        home = "/" if is_checker else str(folder)
        os.setsid()  # the process group by which all of the program is ended
        # when memory runs out the kernel must choose the program and not the server, which holds every other request
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
        os.chdir(home)
        _set_resource_limits(plan.limits)
        _drop_capabilities()
        _add_walls(plan, () if is_checker else (home,), report, faults)
        layers = [layer for layer in LAYERS if faults.get(layer) == ""]
        missing = {layer: fault for layer, fault in faults.items() if fault}
        if not has_landlock_and_seccomp(layers):
            raise StartError(f"this machine has no wall to run it behind: {missing}")
        _send(report, {"layers": layers, "missing": missing})
        argv = plan.concurrent_programs[number]
        os.execve(argv[0], argv, _ENVIRONMENT | {"HOME": home, "TMPDIR": home})  # noqa: S606
    except BaseException as error:  # this process is a copy of the worker: it must end here
        with contextlib.suppress(OSError):
            _send(report, {"error": str(error) or repr(error)})
    os.kill(os.getpid(), signal.SIGKILL)


def _send(report: socket.socket, values: dict[str, Any]) -> None:
    os.write(report.fileno(), json.dumps(values).encode())  # the filter refuses socket calls by now


def _add_walls(plan: Plan, writable: Sequence[str], report: socket.socket, faults: dict[str, str]) -> None:
    """Add Landlock and the filters to this process, last of all: they forbid the steps before them."""
    landlock_version = 0

    def add_landlock() -> None:
        nonlocal landlock_version
        version = syscall("landlock", _CREATE_RULESET, None, 0, 1)
        _restrict_files((*_SYSTEM_PATHS, *plan.readable_paths, CHECKER_FOLDER), writable, version)
        landlock_version = version

    def add_fork_filter() -> None:  # the worker gets the listener before the other filter refuses to send it
        listener = seccomp.install_filter(seccomp.build_fork_notify_filter(), seccomp.NEW_LISTENER)
        socket.send_fds(report, [b"{}"], [listener])
        os.close(listener)

    def add_filter() -> None:  # it also refuses what an older Landlock does not govern
        signal_pid = None if landlock_version >= _SIGNALS_VERSION else os.getpid()
        allow_truncate = landlock_version >= _TRUNCATE_VERSION
        seccomp.install_filter(seccomp.build_syscall_filter(signal_pid=signal_pid, allow_truncate=allow_truncate))

    for layer, add in ((LANDLOCK, add_landlock), (FORKS, add_fork_filter), (SECCOMP, add_filter)):
        if layer in plan.wanted_layers:
            try:
                add()
                faults[layer] = ""
            except OSError as error:
                faults[layer] = str(error)


def _drop_capabilities() -> None:
    """Give up every capability; without new privileges no exec, not even root's, gives one back.

    Landlock and seccomp accept no process that could still get new privileges.
    """
    prctl("no new privileges", 38, 1)
    version_3, sets = struct.pack("=Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
    syscall("drop capabilities", _CAPSET, version_3, sets)


def _move_fds(fds: Sequence[int], report: socket.socket) -> socket.socket:
    """Give this process `fds` as 0, 1, 2 and so on, and no others but `report`; return that one, moved."""
    moved = [os.dup2(fd, _FIRST_FREE_FD + number, False) for number, fd in enumerate((report.detach(), *fds))]
    for number, fd in enumerate(moved[1:]):
        os.dup2(fd, number)
    os.closerange(len(fds), _FIRST_FREE_FD)
    os.closerange(_FIRST_FREE_FD + 1, 1 << 20)
    return socket.socket(fileno=_FIRST_FREE_FD)


def _set_resource_limits(limits: RequestLimits) -> None:
    """Set each limit of a process, none above what this process may have."""
    for name, value in (
        ("AS", limits.memory_mb << 20),
        # The measured time decides; this one ends a program that nobody measures any more. The kernel counts it by
        # ticks, which on a busy virtual machine run some 10 % ahead of the time that a process really had.
        ("CPU", 2 * ceil(limits.cpu_s) + 5),
        ("FSIZE", limits.disk_mb << 20),
        ("NOFILE", _OPEN_FILES),
        ("CORE", 0),
        ("MEMLOCK", 0),
        ("SIGPENDING", 1024),
    ):
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


# Landlock decides which files a program reads and writes. Source: Linux include/uapi/linux/landlock.h. The numbers of
# the calls are the same on every machine.

_SYSTEM_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/localtime",
                "/etc/alternatives")  # fmt: skip
"""What every program may read, beside its interpreter. Not `/proc`, `/sys`, `/etc`, homes or data disks."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RIGHTS_BY_VERSION = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
"""Rights to files that a version brought: 13 at first, then REFER, TRUNCATE and IOCTL_DEV."""
_READ = 1 | 4 | 8  # EXECUTE, READ_FILE, READ_DIR
_OF_FILES = 1 | 2 | 4 | 1 << 14 | 1 << 15  # the rights that a rule for a file, and not a folder, may hold
_MAKE_DEVICES = 1 << 6 | 1 << 11  # MAKE_CHAR, MAKE_BLOCK
_TRUNCATE_VERSION, _SIGNALS_VERSION = 3, 6
"""Versions that govern truncation, and signals and abstract Unix sockets."""


def _restrict_files(readable: Iterable[str], writable: Iterable[str], version: int) -> None:
    """Confine this process and its children to files below these paths, for good; its signals too from version 6 on."""
    handled = sum(rights for since, rights in _RIGHTS_BY_VERSION.items() if since <= version)
    # rights to files; TCP bind and connect (version 4); abstract Unix sockets and signals (version 6)
    attributes = struct.pack("=QQQ", handled, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = syscall("landlock_create_ruleset", _CREATE_RULESET, attributes, len(attributes), 0)
    for path in readable:
        _allow_below(ruleset, path, _READ)
    for path in writable:
        _allow_below(ruleset, path, handled & ~_MAKE_DEVICES)
    for path in _DEVICES:
        _allow_below(ruleset, path, handled & (2 | 4 | 1 << 14))  # WRITE_FILE, READ_FILE, TRUNCATE
    syscall("landlock_restrict_self", _RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow_below(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # this machine has no such path
    try:
        rights &= -1 if os.path.isdir(path) else _OF_FILES
        syscall("landlock_add_rule", _ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, fd), 0)
    finally:
        os.close(fd)
