"""A control group for the programs of one request, where the machine lets us make one: no process leaves it.

It counts the processor time of all that ever was in it, ends all of it at once, and bounds processes and memory, each
as far as there is a controller for it. Version 1 and 2, and machines that have both.
Sources: Linux cgroups(7); Documentation/admin-guide/{cgroup-v2.rst,cgroup-v1/}.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from rlbox.system.cgroup import PROCS_FILE, find_own_cgroups
from rlbox.system.process_table import read_text

PREFIX = "rlbox-sandbox-"
_FREED_S, _FREED_TIMES = 0.01, 200
_PARTS = {
    "": ("kill", "cpu", "pids", "memory"),
    "pids": ("pids",),
    "memory": ("memory",),
    "cpuacct": ("cpu",),
    "freezer": ("kill",),
}
_MARKS = {
    ("", "kill"): "cgroup.kill", ("", "cpu"): "cpu.stat", ("", "pids"): "pids.max", ("", "memory"): "memory.max",
    ("pids", "pids"): "pids.max", ("memory", "memory"): "memory.limit_in_bytes", ("cpuacct", "cpu"): "cpuacct.usage",
    ("freezer", "kill"): "freezer.state",
}  # fmt: skip
"""The file by which a group of a hierarchy shows that it does its part."""


class ProgramGroup:
    """The group of one request, or of some one after another, by its name; where none can be made it does nothing."""

    def __init__(self, name: str, *, tasks: int, memory_bytes: int) -> None:
        self._folders: dict[str, Path] = {}
        self._parts: dict[str, tuple[str, Path]] = {}
        self._why = "no control group is mounted here"
        self._memory = memory_bytes
        self._before = (0.0, 0, 0)  # seconds, ends for memory and bytes of what was in it before the request
        for kind, base in find_own_cgroups(_PARTS):
            if kind not in self._folders:
                self._make(kind, base, name)
        for part, text in (("pids", tasks), ("memory", memory_bytes)):
            if found := self._parts.get(part):
                kind, mark = found
                try:
                    mark.write_text(str(text))
                except OSError as error:
                    self._why = str(error)
                    del self._parts[part]

    def _make(self, kind: str, base: Path, name: str) -> None:
        folder = base / name
        try:
            if not kind:
                with contextlib.suppress(OSError):  # refused where processes are, but at the root
                    (base / "cgroup.subtree_control").write_text("+pids +memory")
            folder.mkdir()
        except OSError as error:
            self._why = str(error)
            return
        self._folders[kind] = folder
        for part in _PARTS[kind]:
            mark = folder / _MARKS[kind, part]
            if mark.exists():
                self._parts.setdefault(part, (kind, mark))

    @property
    def lacks(self) -> str:
        """Return which parts could not be had, and why; empty when all could."""
        missing = [part for part in _PARTS[""] if part not in self._parts]
        if missing:
            return f"{', '.join(missing)}: {self._why if not self._folders else 'no controller for a group of its own'}"
        return ""

    def doors(self) -> list[int]:
        """Return descriptors; whoever writes 0 to each is in the group. They are the caller's."""
        return [os.open(folder / PROCS_FILE, os.O_WRONLY | os.O_CLOEXEC) for folder in self._folders.values()]

    def holds(self, pid: int) -> bool:
        """Return whether a process is in it, in every hierarchy."""
        return all(str(pid) in read_text(folder / PROCS_FILE).split() for folder in self._folders.values())

    def settle(self) -> None:
        """Take what is in it now for its own: that is not the next request's."""
        _, mark = self._parts.get("memory", ("", Path()))
        self._before = (*self._before[:2], self._held(mark) if mark.name else 0)
        self._memory = 0

    def begin(self, memory_bytes: int) -> None:
        """Count for the next request, whose processes alone are in it from now on beside what was settled.

        Raises
        ------
        OSError
            It cannot be bounded to `memory_bytes`.
        """
        _, mark = self._parts.get("memory", ("", Path()))
        if mark.name and memory_bytes != self._memory:
            self._bound(mark, memory_bytes + self._before[2])
            self._memory = memory_bytes
        self._before = (self._cpu_s(), self._ooms(), self._before[2])

    def _bound(self, mark: Path, most: int) -> None:
        """Bound the memory, once the kernel has given back what ended before."""
        for _ in range(_FREED_TIMES):
            if self._held(mark) < most:
                break
            time.sleep(_FREED_S)
        mark.write_text(str(most))

    @staticmethod
    def _held(mark: Path) -> int:
        """Return the bytes in the group whose bound is `mark`."""
        name = "memory.current" if mark.name == "memory.max" else "memory.usage_in_bytes"
        return int(read_text(mark.parent / name).strip() or 0)

    def cpu_s(self) -> float:
        """Return the seconds of processor time of all that ever was in it; 0 where nobody counts."""
        return self._cpu_s() - self._before[0]

    def _cpu_s(self) -> float:
        kind, mark = self._parts.get("cpu", ("", Path()))
        text = read_text(mark) if mark.name else ""
        if kind:
            return int(text or 0) / 1e9
        return next((int(line.split()[1]) / 1e6 for line in text.splitlines() if line.startswith("usage_usec ")), 0.0)

    def starved(self) -> bool:
        """Return whether the kernel ended something in it for memory."""
        return self._ooms() > self._before[1]

    def _ooms(self) -> int:
        _, mark = self._parts.get("memory", ("", Path()))
        name = "memory.events" if mark.name == "memory.max" else "memory.oom_control"
        rows = read_text(mark.parent / name).splitlines() if mark.name else []
        return next((int(row.split()[1]) for row in rows if row.startswith("oom_kill ")), 0)

    def kill(self) -> None:
        """End all that is in it: at once where the kernel does that, else while it stands still."""
        kind, mark = self._parts.get("kill", ("", Path()))
        with contextlib.suppress(OSError):
            if not kind and mark.name:
                mark.write_text("1")
            elif kind:
                mark.write_text("FROZEN")
                _end(mark.parent)
                mark.write_text("THAWED")

    def remove(self) -> None:
        """Remove it; nothing is in it any more."""
        for folder in self._folders.values():
            with contextlib.suppress(OSError):
                folder.rmdir()


def enter(doors: Iterable[int]) -> bool:
    """Put this process into a group by its doors, and close them; return whether all of them let it in."""
    done = True
    for door in doors:
        try:
            os.write(door, b"0")
        except OSError:
            done = False
        os.close(door)
    return done


def forget(name: str) -> None:
    """End what a killed keeper left in the group of this name, and remove it."""
    for folder in _named(name):
        _end(folder)
        with contextlib.suppress(OSError):
            folder.rmdir()


def forget_dead() -> None:
    """Remove the groups of servers that are no more; the kernel keeps one that anything is in."""
    for folder in _named(f"{PREFIX}*"):
        if not os.path.exists(f"/proc/{folder.name.removeprefix(PREFIX).partition('-')[0]}"):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _named(pattern: str) -> Iterator[Path]:
    for _, base in find_own_cgroups(_PARTS):
        yield from base.glob(pattern)


def _end(folder: Path) -> None:
    for pid in map(int, read_text(folder / PROCS_FILE).split()):
        with contextlib.suppress(OSError):
            if pid:  # 0: of a process namespace that is not seen from here
                os.kill(pid, signal.SIGKILL)
