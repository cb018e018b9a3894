"""The processes below the keeper: what they took, whether they sleep, and their end.

The keeper adopts what loses its parent, so everything a program starts stays below it, whatever session or group it
makes: when the keeper has no child left, nothing of the program is alive.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rlbox.sandbox.program_cgroup import ProgramGroup
from rlbox.system.process_table import find_descendants, probe_processes, read_text

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # CONFIG_PROC_CHILDREN
_PAGE = os.sysconf("SC_PAGE_SIZE")
_NOT_CARRIED_OUT = 0x40  # of a process' flags: PF_FORKNOEXEC
_CHILD_TIMES = (13, 14)  # cutime and cstime, counted from the state on
_END_S = 20  # for what ends slowly: memory of many processes is given back one by one
_NOTHING_S = 0.0005  # seconds of processor time between two looks that are none


def list_descendants(pid: int) -> Iterator[int]:
    """Yield the ids of all processes below `pid`, as far as they can be seen at once."""
    if not LISTS_CHILDREN:
        yield from find_descendants(probe_processes(), {pid})
        return
    for child in list_children(pid):
        yield child
        yield from list_descendants(child)


def list_children(pid: int) -> list[int]:
    """Return the ids of the children of a process, none when it is gone."""
    return [int(one) for thread in list_threads(pid) for one in read_text(f"{thread}/children").split()]


def read_cpu_s(pid: int) -> float:
    """Return the seconds of processor time that a process took, all its threads; 0 when it is gone."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # the kernel's number of the clock of another process
    except OSError:
        return 0.0


@dataclass
class ProcessTree:
    """What is below this process, or below `top` where that is not 0: the first process of a process namespace.

    `idle_s` grows while all of it sleeps. `reaped_s` is the time of those that were buried here, with their children's.
    """

    reaped_s: float = 0.0
    cpu_s: float = 0.0
    idle_s: float = 0.0
    tasks: int = 0
    peak_bytes: int = 0
    group: ProgramGroup | None = None
    top: int = 0
    _seen: dict[tuple[int, str], float] = field(default_factory=dict)
    _looked: float = 0.0

    def reap(self) -> dict[int, int]:
        """Return the exit code of each child that has ended, by id; a signal is a negative one."""
        ended: dict[int, int] = {}
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if not pid:
                    break
                ended[pid] = os.waitstatus_to_exitcode(status)
                self.reaped_s += usage.ru_utime + usage.ru_stime
        return ended

    def _all(self) -> set[int]:
        return set(list_descendants(self.top or os.getpid()))

    def look(self) -> None:
        """Measure everything there is of it."""
        now, before = time.monotonic(), self.cpu_s
        living, tasks, asleep = 0.0, 0, True
        for pid in self._all():
            head, _, tail = read_text(f"/proc/{pid}/stat").rpartition(")")
            words = tail.split()
            if not head or _ended(words):
                continue
            own = read_cpu_s(pid)
            self._seen[pid, words[19]] = own
            living += own + sum(int(words[place]) for place in _CHILD_TIMES) * _TICK_S
            tasks += int(words[17])
            asleep = asleep and _sleeps(pid)
        # what ended unseen by its parent is not in its parent's time: then what was seen of it counts
        counted = self.group.cpu_s() if self.group else 0.0
        self.cpu_s = max(self.cpu_s, self.reaped_s + living, sum(self._seen.values()), counted)
        self.tasks = tasks + bool(self.top)
        if self._looked and asleep and self.cpu_s - before < _NOTHING_S:
            self.idle_s += now - self._looked
        self._looked = now

    def memory_bytes(self, limit: int) -> int:
        """Return the memory of all of it; what several share is counted once when the plain sum is above `limit`."""
        pids = self._all()
        total = sum(_resident(pid) for pid in pids)
        if total > limit:
            total = sum(_share(pid) for pid in pids - _borrowers(pids))
        self.peak_bytes = max(self.peak_bytes, total)
        return total

    def bury(self, seconds: float) -> None:
        """Count all of it, which has ended; `seconds` is what those took that were buried elsewhere."""
        self.reaped_s += seconds
        self.cpu_s = max(self.cpu_s, self.reaped_s, self.group.cpu_s() if self.group else 0.0)

    def end(self, ended: dict[int, int]) -> bool:
        """Kill everything below this process, and add the exit codes of its children to `ended`.

        Return whether nothing lives, which is sure: a child that is left would be ours.
        """
        deadline = time.monotonic() + _END_S
        while time.monotonic() < deadline:
            self.look()
            if self.group:
                self.group.kill()
            for pid in set(list_descendants(os.getpid())):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            ended |= self.reap()
            try:
                if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    time.sleep(0.002)
            except ChildProcessError:
                return True
        return False


def list_threads(pid: int) -> list[str]:
    """Return the folders of a process' threads in /proc; one has what another has not, for the first may have ended."""
    try:
        return [f"/proc/{pid}/task/{thread}" for thread in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _ended(words: list[str]) -> bool:
    """Return whether a process is no more, by its `stat` from the state on: its first thread and all others."""
    return words[0] in "ZX" and int(words[17]) <= 1


def _sleeps(pid: int) -> bool:
    """Return whether all threads sleep; who waits for a disk does not, who waits for a child of vfork's does."""
    awake = set(_states(pid)) - set("STZX")
    return not awake or (awake == {"D"} and bool(_borrowers(list_children(pid))))


def _states(pid: int) -> Iterator[str]:
    for thread in list_threads(pid):
        yield read_text(f"{thread}/stat").rpartition(")")[2].strip()[:1] or "S"


def _resident(pid: int) -> int:
    for thread in (f"/proc/{pid}", *list_threads(pid)):
        fields = read_text(f"{thread}/statm").split()
        if fields and fields[0] != "0":
            return int(fields[1]) * _PAGE
    return 0


def _share(pid: int) -> int:
    for thread in (f"/proc/{pid}", *list_threads(pid)):
        for line in read_text(f"{thread}/smaps_rollup").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return _resident(pid)


def _borrowers(pids: Iterable[int]) -> set[int]:
    """Return processes that have their parent's memory until they carry out a program, which it waits for: vfork's.

    No more than one of each parent, for how a process looks can be made up.
    """
    found: dict[int, int] = {}
    for pid in pids:
        words = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if not words or not int(words[6]) & _NOT_CARRIED_OUT:
            continue
        parent = int(words[1])
        same = read_text(f"/proc/{pid}/statm") == read_text(f"/proc/{parent}/statm")
        if same and "D" in _states(parent):
            found[parent] = pid
    return set(found.values())
