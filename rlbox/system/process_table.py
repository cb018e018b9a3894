"""The processes of this machine as the kernel lists them: what they are, whose, and what their environment carries.

/proc is read by hand: psutil has neither session nor group of a process, and as a dependency it would be a compiled
package in the lock of every image.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class ProcessKey(NamedTuple):
    """What tells a process from a later one with the same id."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process; `start_ticks` (clock ticks since boot) tells it from a later one with the same id."""

    pid: int
    parent_pid: int
    group_id: int
    session_id: int
    start_ticks: int
    name: str
    state: str
    threads: int

    @property
    def key(self) -> ProcessKey:
        return ProcessKey(self.pid, self.start_ticks)

    @property
    def is_zombie(self) -> bool:
        """Whether it has ended and only waits to be reaped.

        One whose first thread ended while others go on is shown as a zombie too, but holds all it had.
        """
        return self.state in "ZXx" and self.threads <= 1


def probe_processes() -> dict[int, Process]:
    found = (probe_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process}


def probe_process(pid: int) -> Process | None:
    name, fields = read_stat_or_empty_fields(pid)
    if not fields:
        return None
    return Process(
        pid=pid,
        parent_pid=int(fields[1]),
        group_id=int(fields[2]),
        session_id=int(fields[3]),
        start_ticks=int(fields[19]),
        name=name,
        state=fields[0],
        threads=int(fields[17]),
    )


class StatNameAndFields(NamedTuple):
    name: str
    fields: list[str]


def read_stat_or_empty_fields(pid: int) -> StatNameAndFields:
    head, _, tail = read_text_or_empty(f"/proc/{pid}/stat").rpartition(")")  # the name may hold blanks and brackets
    return StatNameAndFields(head.partition("(")[2], tail.split())


def read_text_or_empty(path: str | Path) -> str:
    """Return a file of the kernel's, or a small one of a disk, as text; empty when it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def read_environ_or_empty(pid: int) -> dict[str, str]:
    words = read_text_or_empty(f"/proc/{pid}/environ").split("\0")
    return {name: value for name, found, value in (word.partition("=") for word in words) if found}


def find_process_owner_or_uid_or_empty(pid: int) -> str:
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def is_own_process_with_env(pid: int, variables: Mapping[str, str]) -> bool:
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return False
    except OSError:
        return False
    words = read_text_or_empty(f"/proc/{pid}/environ").split("\0")
    return all(f"{name}={value}" in words for name, value in variables.items())


def find_own_pids_by_env(table: Mapping[int, Process], variables: Mapping[str, str]) -> set[int]:
    return {p.pid for p in table.values() if not p.is_zombie and is_own_process_with_env(p.pid, variables)}


def read_cmdline_or_empty(pid: int) -> str:
    return read_text_or_empty(f"/proc/{pid}/cmdline").rstrip("\0").replace("\0", " ")


def probe_resident_bytes_or_0(pid: int) -> int:
    fields = read_proc_memory_file_or_empty(pid, "statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def read_proc_memory_file_or_empty(pid: int, file_name: str) -> str:
    """Return a file on the memory that all threads share; one that has ended shows none of it."""
    texts = (read_text_or_empty(f"{thread}/{file_name}") for thread in list_thread_dirs(pid))
    return next((text for text in texts if text and not text.startswith("0 ")), "")


def list_thread_dirs(pid: int) -> list[str]:
    """Return the folders of a process' threads in `/proc`; the first thread may have ended before the others."""
    try:
        return [f"/proc/{pid}/task/{thread}" for thread in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def list_child_pids(pid: int) -> list[int]:
    return [int(child) for task in list_thread_dirs(pid) for child in read_text_or_empty(f"{task}/children").split()]


def find_descendants_excluding_roots(table: Mapping[int, Process], roots: set[int]) -> set[int]:
    below: dict[int, list[int]] = {}
    for process in table.values():
        below.setdefault(process.parent_pid, []).append(process.pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        for pid in below.get(waiting.pop(), []):
            if pid not in found and pid not in roots:
                found.add(pid)
                waiting.append(pid)
    return found


def find_tree_session_and_group_pids(table: Mapping[int, Process], roots: set[int]) -> set[int]:
    """Return `roots`, and the ids of what shares a session or group that one of them began, and of all below these."""
    shared = {process.pid for process in table.values() if process.session_id in roots or process.group_id in roots}
    return roots | shared | find_descendants_excluding_roots(table, roots | shared)


def find_self_and_ancestors(table: Mapping[int, Process], pid: int) -> set[int]:
    found: set[int] = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].parent_pid
    return found
