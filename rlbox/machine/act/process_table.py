"""The processes of this machine as the kernel lists them, and whose environment carries which marks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process; `started` (clock ticks since boot) tells it from a later one with the same id."""

    pid: int
    parent: int
    group: int
    session: int
    started: int
    name: str
    state: str
    threads: int

    @property
    def key(self) -> tuple[int, int]:
        """What no other process has, not even a later one with the same id."""
        return self.pid, self.started

    @property
    def gone(self) -> bool:
        """Whether it has ended and only waits to be reaped.

        One whose first thread ended while others go on is shown as a zombie too, but holds all it had.
        """
        return self.state in "ZXx" and self.threads <= 1


def probe_processes() -> dict[int, Process]:
    """Return all processes that are visible from here, by id."""
    found = (probe_process(int(name)) for name in os.listdir(_PROC) if name.isdigit())
    return {process.pid: process for process in found if process}


def probe_process(pid: int) -> Process | None:
    """Return one process, or None when there is none."""
    text = read_proc(f"/proc/{pid}/stat").decode("utf-8", "replace")
    head, _, tail = text.rpartition(")")  # the name itself may hold blanks and brackets
    fields = tail.split()
    if not fields:
        return None
    return Process(
        pid=pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        started=int(fields[19]),
        name=head.partition("(")[2],
        state=fields[0],
        threads=int(fields[17]),
    )


def read_proc(path: str) -> bytes:
    """Return a small file of /proc, with half the work of other ways to read; empty when it cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(handle, _MOST_BYTES)
    except OSError:
        return b""
    finally:
        os.close(handle)


def carries(pid: int, marks: Mapping[str, str]) -> bool:
    """Whether a process of this user was started with every one of `marks` in its environment."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return False
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            environment = file.read()
    except OSError:
        return False
    if not all(value.encode() in environment for value in marks.values()):  # most carry none
        return False
    words = environment.split(b"\0")
    return all(f"{name}={value}".encode() in words for name, value in marks.items())


def probe_command_line(pid: int) -> str:
    """Return the command line of a process, words joined by blanks; empty when it cannot be seen."""
    try:
        data = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return data.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")


def probe_resident_bytes(pid: int) -> int:
    """Return the memory that a process holds; 0 when it cannot be seen."""
    try:
        return int((_PROC / str(pid) / "statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def descendants(table: Mapping[int, Process], roots: set[int]) -> set[int]:
    """Return the ids of all processes below `roots`, without the roots themselves."""
    below: dict[int, list[int]] = {}
    for process in table.values():
        below.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        for pid in below.get(waiting.pop(), []):
            if pid not in found and pid not in roots:
                found.add(pid)
                waiting.append(pid)
    return found


def ancestors(table: Mapping[int, Process], pid: int) -> set[int]:
    """Return the ids of `pid` and all processes above it."""
    found: set[int] = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].parent
    return found
