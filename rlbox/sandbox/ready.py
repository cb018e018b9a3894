"""What a keeper makes once for many requests: a root, a control group, and an interpreter that is ready in both.

Each request has mounts and folders of its own, which end with it, a process namespace in which nothing else is alive
and its ids begin anew, and a copy of the interpreter that no program was in. What else requests share one after another
no program reaches: the network (it has no sockets), kernel objects between processes (it has no calls for them), the
name of the machine, the users: the filter refuses what would change them, and without it there is no such keeper.
"""

from __future__ import annotations

import base64
import contextlib
import marshal
import os
import re
import resource
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.sandbox import kernel, seccomp
from rlbox.sandbox.isolation import ENVIRONMENT, FORKS, GROUP, LANDLOCK, NAMESPACES, SCOPED, SECCOMP, limit_values
from rlbox.sandbox.limits import ProgramLimits
from rlbox.sandbox.lines import readable
from rlbox.sandbox.process_tree import LISTS_CHILDREN, list_children
from rlbox.sandbox.program_cgroup import ProgramGroup, enter
from rlbox.sandbox.root import DEVICES, PROGRAMS, SYSTEM, fresh_folders, leave_namespaces, make_root, shown_again
from rlbox.sandbox.scratch import write_files

_READY = f"{PROGRAMS}/ready"
_FOLDER, _WRITTEN = "/program", ("/program", "/tmp", "/dev/shm")  # noqa: S108 its own
_SITE = ".local/"  # below a home, where Python has looked for packages of a user's own already
_LOOKS = re.compile(
    rb"\bgc\b|__del__"
    rb"|\b(?:os|io|abc|codecs|stat|site|posix|posixpath|genericpath|encodings)\.[\w.]*\s*=[^=]"
)  # in what could tell how far an end takes Python's own things apart
_PIDS = "/proc/sys/kernel/ns_last_pid"
_HIGH, _REPORT = 200, 100  # descriptors on their way, and the first that is not one of the lowest
_START_S = 20.0
_EACH = {"AS", "CPU", "FSIZE"}  # limits that each request has of its own
_LEAST_MB = 64  # of memory, for a program that is not carried out anew: what Python itself takes would be above it


class WarmInterpreter:
    """The place of a keeper's programs, and the interpreter that becomes them; `ended` when it is there no more.

    Raises
    ------
    OSError
        It cannot be had here.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._read = (*SYSTEM, *settings["read"], PROGRAMS)
        self._scratch = Path(settings["scratch"])
        self._python: list[str] = list(settings["python"])
        limits = ProgramLimits.from_json(settings["limits"])
        layers = set(settings["layers"])
        if not (
            {NAMESPACES, SECCOMP} <= layers and seccomp.is_supported_machine(os.uname().machine) and LISTS_CHILDREN
        ):
            raise OSError("no namespaces, or no filter of system calls")
        self.ended = False
        self.lacks: dict[str, str] = {}
        self._write: list[tuple[str, int]] = []
        self.group: ProgramGroup | None = None
        if GROUP in layers:
            memory = (limits.memory_mb + limits.disk_mb) << 20
            self.group = ProgramGroup(settings["group"], tasks=limits.tasks + 1, memory_bytes=memory)
            if self.group.lacks:
                self.lacks[GROUP] = self.group.lacks
        leave_namespaces()
        self._root = self._scratch / "root"
        make_root(self._root, self._read, limits.disk_mb)
        for folder in _WRITTEN:
            kernel.make_read_only(f"{self._root}{folder}")  # each request lays its own over them
        self._again = shown_again(self._read)
        self._told = self._how(layers)
        self.layers = [NAMESPACES, SECCOMP, *(layer for layer in (LANDLOCK, FORKS) if self._told[layer])]
        self._line, line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.report, report = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.report.setblocking(False)
        with line, report:
            self.pid = self._start(line, report)
        self._line.settimeout(_START_S)
        self._line.send(marshal.dumps(self._told, 2))
        if self._line.recv(100) != b"ready":
            raise OSError("the interpreter of the programs does not get ready")
        self._line.settimeout(None)
        os.close(os.pidfd_open(self.pid))  # without which nobody hears that a program has ended
        if self.group:
            self.group.settle()
            if not self.group.holds(self.pid):
                self.lacks[GROUP] = "the kernel lets nothing enter it"
            elif not self.group.lacks:
                self.layers.append(GROUP)

    def _how(self, layers: set[str]) -> dict[str, Any]:
        """Return how the walls are raised here, for the interpreter."""
        machine, version, rules, attributes = os.uname().machine, 0, [], b""
        if LANDLOCK in layers:
            try:
                version = kernel.landlock_version()
                attributes = kernel.landlock_attributes()
                rules = _needed(kernel.landlock_rights(self._read, (), DEVICES))
                ((_, rights),) = kernel.landlock_rights((), ("/",), ())  # of any folder
                self._write = [(path, rights) for path in _WRITTEN]
            except OSError as error:
                version, self.lacks[LANDLOCK] = 0, str(error)
        pids = (0, 0) if version >= SCOPED else (2, 3)  # of the programs, in a process namespace of their own
        return {
            "calls": kernel.call_numbers(),
            "again": self._again,
            "rules": rules,
            LANDLOCK: attributes,
            FORKS: seccomp.build_fork_filter(machine) if FORKS in layers else b"",
            SECCOMP: [seccomp.build_filter(machine, pid=pid) for pid in pids],
        }

    def _start(self, line: socket.socket, report: socket.socket) -> int:
        """Start the interpreter; its streams are of the kinds that its programs' are, for it looks at them but once."""
        streams = [readable(b""), *(end for _ in range(2) for end in os.pipe2(os.O_CLOEXEC))]
        pids = os.open(_PIDS, os.O_WRONLY | os.O_CLOEXEC)
        doors = self.group.doors() if self.group else []
        pid = os.fork()
        if not pid:
            lowest = (streams[0], streams[2], streams[4], line.fileno())
            self._become({**dict(enumerate(lowest)), _REPORT: report.fileno(), _REPORT + 1: pids}, doors)
        for fd in (*streams, *doors, pids):
            os.close(fd)
        return pid

    def _become(self, fds: Mapping[int, int], doors: Sequence[int]) -> None:
        with contextlib.suppress(BaseException):  # the process is a copy of the keeper's: it must end here
            kernel.die_with_parent()
            enter(doors)
            with contextlib.suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text("1000")
            high = {place: os.dup2(fd, _HIGH + number, False) for number, (place, fd) in enumerate(fds.items())}
            for place, fd in high.items():
                os.dup2(fd, place)
            for kind, value in limit_values(ProgramLimits(), 0, but=_EACH):
                resource.setrlimit(kind, (value, value))
            kernel.enter_root(str(self._root))
            os.chdir(_FOLDER)
            kernel.keep_mounting()
            environment = _environment(_FOLDER) | {"PYTHONPATH": _READY}
            os.execve(self._python[0], self._python, environment)  # noqa: S606
        os.kill(os.getpid(), signal.SIGKILL)

    def begin(self, plan: Mapping[str, Any], limits: ProgramLimits, fds: Sequence[Sequence[int]]) -> RunningPrograms:
        """Start the programs of a request, each with descriptors of its own.

        Raises
        ------
        OSError
            They cannot be started.
        """
        if self.group:
            self.group.begin((limits.memory_mb + limits.disk_mb) << 20)
        files = {name: base64.b64decode(text) for name, text in plan["files"].items()}
        folder = self._fill(files, limits.disk_mb)
        try:
            programs = [self._program(plan, number, files, limits, len(own)) for number, own in enumerate(fds)]
            values = limit_values(limits, plan["cpu_s"], only=_EACH)
            message = marshal.dumps({"limits": values, "programs": programs}, 2)
            socket.send_fds(self._line, [message], [folder, *(fd for own in fds for fd in own)])
            if self._line.recv(100) != b"begun":
                raise ConnectionError("the interpreter that is ready has ended")
            first = list_children(self.pid)
            return RunningPrograms(ended=os.pidfd_open(first[0]) if first else -1, folder=folder)
        except OSError as error:
            self.ended = isinstance(error, ConnectionError)
            os.close(folder)
            raise

    def end(self) -> tuple[float, list[list[int]]]:
        """End all processes of a request; return their seconds of processor time, and how its programs ended.

        That is number, status and most memory (KiB) of each; none when the first of all processes was ended.
        """
        with contextlib.suppress(OSError):
            self._line.send(b"end")
            seconds, *ended = self._line.recv(1 << 12).decode().split("\n")
            return float(seconds or 0), [[int(word) for word in row.split()] for row in ended]
        self.ended = True
        return 0.0, []

    def _fill(self, files: Mapping[str, bytes], disk_mb: int) -> int:
        """Return a handle of the folders of a request, with its files in the first of them."""
        handle = fresh_folders(self._again, disk_mb)
        try:
            with inside(handle):
                write_files(Path(), files)
        except OSError:
            os.close(handle)
            raise
        return handle

    def _program(
        self, plan: Mapping[str, Any], number: int, files: Mapping[str, bytes], limits: ProgramLimits, fds: int
    ) -> dict[str, Any]:
        """Return what is told of a program; without words it is one that the interpreter becomes."""
        words: list[str] = plan["programs"][number]
        folder = "" if plan["check"] and number == 0 else _FOLDER  # the checker has none: the program under test has it
        becomes = words == self._python and limits.memory_mb >= _LEAST_MB
        if becomes and any(name.startswith(_SITE) or _LOOKS.search(content) for name, content in files.items()):
            becomes = False
        return {
            "argv": [] if becomes else words,
            "env": {} if becomes else _environment(folder or "/"),
            "folder": folder,
            "write": self._write if folder else [],
            "fds": fds,
        }

    def close(self) -> None:
        """End the interpreter, and remove what was made for it."""
        self._line.close()
        self.report.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        if self.group:
            self.group.remove()
        with contextlib.suppress(OSError):
            kernel.unmount(str(self._root))
            self._root.rmdir()


@dataclass(frozen=True, kw_only=True)
class RunningPrograms:
    """What is there of a request: `ended` is to be read once its first program has ended, `folder` has its files."""

    ended: int
    folder: int

    def close(self) -> None:
        """Let go of it."""
        for fd in (self.ended, self.folder):
            if fd >= 0:
                os.close(fd)


@contextlib.contextmanager
def inside(handle: int) -> Iterator[None]:
    """Work in the programs' folder, which lies below `handle`; no path leads there, so that none has a link in it."""
    folder = os.open(_FOLDER[1:], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
    try:
        os.fchdir(folder)
        yield
    finally:
        os.chdir("/")
        os.close(folder)


def _needed(rules: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return rules without those that another one makes needless: one for a folder is for all that lies below it."""
    places = [(os.path.realpath(path), path, rights) for path, rights in rules]
    return [
        (path, rights)
        for number, (place, path, rights) in enumerate(places)
        if not any(
            rights | more == more and (place.startswith(f"{above}/") or (place == above and other < number))
            for other, (above, _, more) in enumerate(places)
        )
    ]


def _environment(folder: str) -> dict[str, str]:
    return ENVIRONMENT | {"HOME": folder, "TMPDIR": folder}
