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
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from rlbox.sandbox import filesystem, seccomp
from rlbox.sandbox.cgroup import ProgramCgroup
from rlbox.sandbox.plan import CGROUP, FORKS, LANDLOCK, SECCOMP, IsolationLevel, Plan
from rlbox.sandbox.request import RequestLimits
from rlbox.sandbox.seccomp import ListenerFd
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
_CAPSET = {"x86_64": 126, "aarch64": 91}


class StartedProgram(NamedTuple):
    pid: int
    isolation: IsolationLevel
    fork_listener: ListenerFd | None


class StartError(Exception):
    """A program could not be started behind walls; says nothing about the program."""


def start_program(
    plan: Plan,
    program_index: int,
    child_fds: Sequence[int],
    program_dir: Path,
    writable_paths: Sequence[str],
    cgroup: ProgramCgroup | None,
) -> StartedProgram:
    """Start a program of a plan as the leader of a process group; it gets `child_fds` as 0, 1, 2 and so on.

    Raises
    ------
    StartError
        With what the kernel said.
    """
    report, child_report = socket.socketpair()
    pid = os.fork()
    if not pid:
        _become_program(plan, program_index, child_fds, program_dir, writable_paths, cgroup, child_report)
    child_report.close()
    content, listener = b"", None
    with report:
        while True:  # ends with the exec, or with the process
            chunk, received_fds, _, _ = socket.recv_fds(report, 1 << 16, 1)
            content += chunk
            listener = received_fds[0] if received_fds else listener
            if not chunk:
                break
    values: dict[str, Any] = {}
    for line in content.splitlines():
        values |= json.loads(line)
    if not values or "error" in values:
        os.kill(pid, signal.SIGKILL)
        raise StartError(values.get("error") or "its process ended before the program began")
    return StartedProgram(pid, IsolationLevel.of(values["layers"], values["missing"]), listener)


def _become_program(
    plan: Plan,
    number: int,
    fds: Sequence[int],
    folder: Path,
    writable: Sequence[str],
    cgroup: ProgramCgroup | None,
    report: socket.socket,
) -> None:
    """Raise the walls around this process, report the layers, and become the program; never return."""
    try:
        layers: list[str] = []
        missing: dict[str, str] = {}
        if cgroup and (error := cgroup.enter()):  # before all else, so that all else is counted in it
            missing[CGROUP] = error
        elif cgroup:
            layers.append(CGROUP)
        report = _move_fds(fds, report)
        is_checker = plan.check is not None and number == 0  # it writes nothing: the program under test has the folder
        home = "/" if is_checker else str(folder)
        os.setsid()  # the process group by which all of the program is ended
        # when memory runs out the kernel must choose the program and not the server, which holds every other request
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
        os.chdir(home)
        for kind, value in _list_resource_limits(plan.limits, plan.max_cpu_s):
            resource.setrlimit(kind, (value, value))
        _drop_capabilities()
        _add_walls(plan, () if is_checker else writable, report, layers, missing)
        level = IsolationLevel.of(layers, missing)
        if not level.has_landlock_and_seccomp:
            raise StartError(f"this machine has no wall to run it behind: {missing}")
        _write_line(report, {"layers": layers, "missing": missing})
        argv = plan.concurrent_programs[number]
        os.execve(argv[0], argv, _ENVIRONMENT | {"HOME": home, "TMPDIR": home})  # noqa: S606
    except BaseException as error:  # this process is a copy of the worker: it must end here
        with contextlib.suppress(OSError):
            _write_line(report, {"error": str(error) or repr(error)})
    os.kill(os.getpid(), signal.SIGKILL)


def _write_line(report: socket.socket, values: dict[str, Any]) -> None:
    os.write(report.fileno(), json.dumps(values).encode() + b"\n")  # send is refused by now


def _add_walls(
    plan: Plan, writable: Sequence[str], report: socket.socket, layers: list[str], missing: dict[str, str]
) -> None:
    """Add Landlock and the filters to this process, last of all: they forbid the steps before them."""
    version = 0
    if LANDLOCK in plan.wanted_layers:
        try:
            version = filesystem.require_landlock_version()
            readable = (*filesystem.SYSTEM_PATHS, *plan.readable_paths, CHECKER_FOLDER)
            filesystem.restrict_files(readable, writable, version)
            layers.append(LANDLOCK)
        except OSError as error:
            version, missing[LANDLOCK] = 0, str(error)
    for layer, install in ((FORKS, _install_fork_filter), (SECCOMP, _install_filter)):
        if layer in plan.wanted_layers:
            try:
                install(version, report)
                layers.append(layer)
            except OSError as error:
                missing[layer] = str(error)


def _install_fork_filter(landlock_version: int, report: socket.socket) -> None:
    """Have the worker asked for new processes; it gets the listener before the other filter refuses to send it."""
    listener = seccomp.install_notify_filter(seccomp.build_fork_notify_filter(_find_machine()))
    socket.send_fds(report, [b"{}\n"], [listener])
    os.close(listener)


def _install_filter(landlock_version: int, report: socket.socket) -> None:
    seccomp.install_filter(_build_filter(landlock_version))


def _build_filter(landlock_version: int) -> bytes:
    """Return the filter, which also refuses what an older Landlock does not govern."""
    signal_pid = None if landlock_version >= filesystem.SIGNALS_VERSION else os.getpid()
    allow_truncate = landlock_version >= filesystem.TRUNCATE_VERSION
    return seccomp.build_filter(_find_machine(), signal_pid=signal_pid, allow_truncate=allow_truncate)


def prepare_filters() -> None:
    """Build the filters before the programs that have them: it takes a millisecond."""
    with contextlib.suppress(OSError):
        seccomp.build_fork_notify_filter(_find_machine())
        _build_filter(filesystem.require_landlock_version())


def _find_machine() -> str:
    machine = os.uname().machine
    if not seccomp.is_supported_machine(machine):
        raise OSError(f"no filter for {machine}")
    return machine


def _drop_capabilities() -> None:
    """Give up every capability; without new privileges no exec, not even root's, gives one back."""
    prctl("no new privileges", 38, 1)
    version_3, sets = struct.pack("=Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
    syscall("drop capabilities", _CAPSET[os.uname().machine], version_3, sets)


def _move_fds(fds: Sequence[int], report: socket.socket) -> socket.socket:
    """Give this process `fds` as 0, 1, 2 and so on, and no others but `report`; return that one, moved."""
    moved = [os.dup2(fd, _FIRST_FREE_FD + number, False) for number, fd in enumerate((report.detach(), *fds))]
    for number, fd in enumerate(moved[1:]):
        os.dup2(fd, number)
    os.closerange(len(fds), _FIRST_FREE_FD)
    os.closerange(_FIRST_FREE_FD + 1, 1 << 20)
    return socket.socket(fileno=_FIRST_FREE_FD)


def _list_resource_limits(limits: RequestLimits, cpu_s: float) -> Iterator[tuple[int, int]]:
    """Yield kind and value of each limit of a process, none above what this process may have."""
    for name, value in (
        ("AS", limits.memory_mb << 20),
        # The measured time decides; this one ends a program that nobody measures any more. The kernel counts it by
        # ticks, which on a busy virtual machine run some 10 % ahead of the time that a process really had.
        ("CPU", 2 * ceil(cpu_s) + 5),
        ("FSIZE", limits.disk_mb << 20),
        ("NOFILE", _OPEN_FILES),
        ("CORE", 0),
        ("MEMLOCK", 0),
        ("SIGPENDING", 1024),
    ):
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        yield kind, value if hard == resource.RLIM_INFINITY else min(value, hard)
