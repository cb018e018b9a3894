"""Measure the processes of a plan against its limits, and end them.

A worker adopts what loses its parent, so that everything a program starts stays below it; and a program cannot leave
its process group (the filter lets it begin none). So one signal to the group ends all of it without a race, and when
the worker has no child left, nothing of the program is alive.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from rlbox.sandbox.cgroup import ReusedMemoryCpuCgroup
from rlbox.sandbox.plan import StopReason
from rlbox.sandbox.request import RequestLimits
from rlbox.sandbox.seccomp import answer_fork_request, receive_fork_request
from rlbox.system.process_table import (
    list_child_pids,
    list_thread_dirs,
    probe_resident_bytes_or_0,
    read_proc_memory_file_or_empty,
    read_stat_or_empty_fields,
    read_text_or_empty,
)

INTERVAL_S = 0.02
_DISK_INTERVAL_S = 0.1
_MIN_CPU_S = 0.0005
"""Less processor time than this between two measurements is none."""
_MAX_ENTRIES = 10_000
"""Files and folders that a program may make; more count as a full folder."""
_END_S = 20.0
"""For the kernel to give back the memory of many processes."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_NEVER_EXECUTED = 0x40  # of a process' flags: PF_FORKNOEXEC
_STATE, _PARENT, _FLAGS, _CHILD_UTIME, _CHILD_STIME, _THREADS, _START = 0, 1, 6, 13, 14, 17, 19  # fields of `stat`


class ProcessMonitor:
    """What the processes below this one use; `limit` names the first limit that they passed."""

    def __init__(self, limits: RequestLimits, folder: Path, cgroup: ReusedMemoryCpuCgroup) -> None:
        self.limit: StopReason = ""
        self.cpu_s = 0.0
        self.peak_bytes = 0
        self.leaders: list[int] = []
        self.listeners: list[int] = []
        self.exit_codes: dict[int, int] = {}  # by process id; a signal is negative
        self._limits, self._folder, self._cgroup = limits, folder, cgroup
        self._ended_cpu_s = 0.0
        self._seen_cpu_s: dict[tuple[int, str], float] = {}
        self._idle_s = 0.0
        self._checked = self._disk_checked = time.monotonic()
        self._tasks = self._new_tasks = 0  # when it was checked, and since then

    def measure_and_record_exceeded_limit(self, *, is_output_full: bool = False) -> None:
        pids = set(_list_descendants(os.getpid()))
        self._tasks, self._new_tasks = self._check_time(pids), 0
        exceeded: dict[StopReason, bool] = {
            "cpu": self.cpu_s > self._limits.cpu_s,
            "sleep": self._idle_s > self._limits.cpu_s,
            "tasks": self._tasks > self._limits.tasks,
            "memory": self._is_over_memory(pids),
            "output": is_output_full,
            "disk": self._is_over_disk(pids),
        }
        self.limit = self.limit or next((limit for limit, is_exceeded in exceeded.items() if is_exceeded), "")

    def allow_next_fork_or_record_limit(self, listener: int) -> None:
        """Let one more process or thread be made, or end all of them where that is one too many."""
        with contextlib.suppress(OSError):
            number = receive_fork_request(listener)
            if self._tasks + self._new_tasks >= self._limits.tasks:  # some of them may have ended
                self.measure_and_record_exceeded_limit()
            if self._tasks + self._new_tasks >= self._limits.tasks:
                self.limit = self.limit or "tasks"
            self._new_tasks += 1
            answer_fork_request(listener, number, allow=not self.limit)

    def _check_time(self, pids: Iterable[int]) -> int:
        """Add up the processor time, note whether all sleep, reap orphans; return how many tasks live."""
        now, cpu_before = time.monotonic(), self.cpu_s
        living_s, tasks, asleep = 0.0, 0, True
        for pid in pids:
            _, fields = read_stat_or_empty_fields(pid)
            if not fields:
                continue
            if fields[_STATE] in "ZX" and int(fields[_THREADS]) <= 1:
                if pid not in self.leaders and int(fields[_PARENT]) == os.getpid():
                    self._reap(pid)
                continue
            own_s = _read_cpu_s(pid)
            self._seen_cpu_s[pid, fields[_START]] = own_s
            living_s += own_s + (int(fields[_CHILD_UTIME]) + int(fields[_CHILD_STIME])) * _TICK_S
            tasks += int(fields[_THREADS])
            asleep = asleep and _is_asleep(pid)
        self._add_up(living_s)
        if asleep and self.cpu_s - cpu_before < _MIN_CPU_S:
            self._idle_s += now - self._checked
        self._checked = now
        return tasks

    def _add_up(self, living_s: float) -> None:
        """Set the processor time: the group's count, or what was seen where a parent ignored the end of its child."""
        seen_s, counted_s = sum(self._seen_cpu_s.values()), self._cgroup.read_request_cpu_s()
        self.cpu_s = max(self.cpu_s, self._ended_cpu_s + living_s, seen_s, counted_s)

    def _is_over_memory(self, pids: set[int]) -> bool:
        if self._cgroup.can_bound_memory():
            return self._cgroup.has_run_out_of_memory()
        limit = self._limits.memory_mb << 20
        total = sum(probe_resident_bytes_or_0(pid) for pid in pids)
        if total > limit:  # what several processes share is counted once
            total = sum(_read_proportional_bytes(pid) for pid in pids - _find_vfork_children(pids))
        self.peak_bytes = max(self.peak_bytes, total)
        return total > limit

    def _is_over_disk(self, pids: Iterable[int]) -> bool:
        # 1 MiB more than FSIZE: whether the one file that fills it is met before its write fails depends on the load
        now, limit = time.monotonic(), (self._limits.disk_mb + 1) << 20
        if now - self._disk_checked < _DISK_INTERVAL_S:
            return False
        self._disk_checked = now
        return measure_disk_bytes_or_above_limit(self._folder, pids, limit) > limit

    def _reap(self, pid: int) -> int:
        """Wait for a child (-1: any); return its id, or 0 where none has ended; ChildProcessError: there is none."""
        pid, status, usage = os.wait4(pid, os.WNOHANG)
        if pid:
            self.exit_codes[pid] = os.waitstatus_to_exitcode(status)
            self._ended_cpu_s += usage.ru_utime + usage.ru_stime
            self.peak_bytes = max(self.peak_bytes, usage.ru_maxrss << 10)
        return pid

    def kill_all_and_wait(self) -> bool:
        """Kill everything below this process, and wait for it; return False if something is left after 20 s.

        No leader was reaped before, so that no other process can have the id of its group.
        """
        self.measure_and_record_exceeded_limit()
        for leader in self.leaders:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader, signal.SIGKILL)
        deadline = time.monotonic() + _END_S
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < deadline:
                if not self._reap(-1):
                    time.sleep(0.001)
            return False
        self._add_up(0.0)
        if self.cpu_s > self._limits.cpu_s:
            self.limit = self.limit or "cpu"
        elif self._cgroup.has_run_out_of_memory():
            self.limit = self.limit or "memory"
        return True


def _list_descendants(pid: int) -> Iterator[int]:
    for child in list_child_pids(pid):
        yield child
        yield from _list_descendants(child)


def _read_cpu_s(pid: int) -> float:
    try:
        return time.clock_gettime(~pid << 3 | 2)  # the kernel's number of the clock of another process
    except OSError:
        return 0.0


def _is_asleep(pid: int) -> bool:
    """Return whether all threads sleep; waiting for a disk is no sleep, waiting for a child of vfork is."""
    awake = {_read_state(thread) for thread in list_thread_dirs(pid)} - set("STZX")
    return not awake or (awake == {"D"} and bool(_find_vfork_children(list_child_pids(pid))))


def _read_state(thread: str) -> str:
    return read_text_or_empty(f"{thread}/stat").rpartition(")")[2].strip()[:1] or "S"


def _read_proportional_bytes(pid: int) -> int:
    for line in read_proc_memory_file_or_empty(pid, "smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return probe_resident_bytes_or_0(pid)


def _find_vfork_children(pids: Iterable[int]) -> set[int]:
    """Return processes that have their parent's memory until they execute a program, for which it waits.

    At most one of each parent, for a program can imitate how such a process looks.
    """
    children: dict[int, int] = {}
    for pid in pids:
        _, fields = read_stat_or_empty_fields(pid)
        if fields and int(fields[_FLAGS]) & _NEVER_EXECUTED:
            parent = int(fields[_PARENT])
            same_memory = read_text_or_empty(f"/proc/{pid}/statm") == read_text_or_empty(f"/proc/{parent}/statm")
            if same_memory and "D" in map(_read_state, list_thread_dirs(parent)):
                children[parent] = pid
    return set(children.values())


def measure_disk_bytes_or_above_limit(folder: Path, pids: Iterable[int], limit: int) -> int:
    """Return the bytes on disk below `folder`, with deleted files that these processes hold open.

    A number above `limit` also stands for too many entries, and for a folder or a process that hides what it holds:
    a deleted file that is mapped and not open has a size that nobody can read.
    """
    total = entries = 0
    try:
        for _, folders, files, fd in os.fwalk(folder, onerror=_raise_hidden):
            entries += len(folders) + len(files)
            for name in (*folders, *files):
                with contextlib.suppress(FileNotFoundError):
                    total += os.stat(name, dir_fd=fd, follow_symlinks=False).st_blocks * 512
            if entries > _MAX_ENTRIES or total > limit:
                return limit + 1
        return total + sum(_measure_deleted(f"{folder}/", pids).values())
    except (PermissionError, RecursionError):
        return limit + 1


def _raise_hidden(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # it was removed meanwhile
        raise PermissionError(str(error)) from error


def _measure_deleted(folder: str, pids: Iterable[int]) -> dict[tuple[int, int], int]:
    """Return the bytes of deleted files that are open, by device and inode; PermissionError if some are hidden."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        inodes = set[int]()
        for thread in list_thread_dirs(pid):  # a thread may have descriptors that the others have not
            try:
                fds = os.listdir(f"{thread}/fd")
            except PermissionError:
                if read_text_or_empty(f"{thread}/statm").startswith("0 "):
                    continue  # it is ending
                raise
            except OSError:
                continue
            for fd in fds:
                with contextlib.suppress(OSError):
                    status = os.stat(f"{thread}/fd/{fd}")
                    if stat.S_ISREG(status.st_mode) and not status.st_nlink:
                        sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
                        inodes.add(status.st_ino)
        if not _list_deleted_mappings(pid, folder) <= inodes:
            raise PermissionError(f"process {pid} maps a deleted file that is not open")
    return sizes


def _list_deleted_mappings(pid: int, folder: str) -> set[int]:
    rows = (line.split(maxsplit=5) for line in read_proc_memory_file_or_empty(pid, "maps").splitlines())
    return {
        int(row[4]) for row in rows if len(row) == 6 and row[5].startswith(folder) and row[5].endswith(" (deleted)")
    }
