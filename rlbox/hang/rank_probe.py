"""Look at the ranks of a stage while its log is still: what each does, and what NCCL says of their communicators."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlbox.hang.nccl import ask_ras, find_ras
from rlbox.hang.ranks import LIMIT_S, NOTICE_S, OTHERS_CPU, Deadlock, Look, Rank, RankJudge, doing_of
from rlbox.hang.ras import Communicator, read_communicators
from rlbox.hang.stacks import main_stacks
from rlbox.hang.wait_probe import probe_waits
from rlbox.hang.waits import Frame, collective_of
from rlbox.job.phase import FLOORS
from rlbox.system.counters import ActivityRates, ActivitySample, compute_rates
from rlbox.system.ports import list_open_files
from rlbox.system.process_table import read_environment, read_stat_fields

_QUIET_S, _EVERY_S = 4.0, 2.0
_RAS_S, _RAS_AGAIN_S = 2.0, 30.0
_STACKS_S = 5.0
_HERE = ("127.0.0.1", "localhost", "::1")
_GPU_LINK = "/dev/nvidia"
_MOST_WORLD = 1024
_COUNT = re.compile(r"[0-9]{1,6}")
_GPU_WAITS = frozenset({"synchronize", "item", "tolist", "cpu", "numpy", "wait", "nonzero", "to", "copy_"})

Probe = Callable[[Iterable[int]], ActivitySample]


@dataclass(frozen=True, kw_only=True)
class Member:
    """A process that is a rank by its environment or by a GPU that it has open; -1: not told.

    `place` is its number among the `world` ranks of its group on this machine; 0: how many these are is not told.
    """

    pid: int
    number: int = -1
    place: int = -1
    world: int = 0
    group: tuple[str, str, str] = ("", "", "")


class RankWatch:
    """Looks every two seconds, from four seconds after the log was last heard; a look costs some ms, and stops nobody.

    Only before it calls a hang a hang does it ask for Python stacks, twice, at `NOTICE_S` and at `LIMIT_S`.
    """

    def __init__(self, members: Callable[[], Mapping[int, str]], background: tuple[str, ...], probe: Probe) -> None:
        self._members, self._background, self._probe = members, background, probe
        self._judge = RankJudge()
        self._looked_s = -math.inf
        self._before: ActivitySample | None = None
        self._ras: tuple[str, int] | None = None
        self._ras_from_s = -math.inf
        self._stacks: dict[int, tuple[Frame, ...]] | None = None

    def look(self, now_s: float, heard_s: float) -> tuple[Deadlock | None, float]:
        """Return how the ranks wait for each other, and for how long they have been; None when they do not."""
        if now_s - heard_s < _QUIET_S:
            self._forget()
            self._before = None
        elif now_s - self._looked_s >= _EVERY_S:
            self._looked_s = now_s
            self._take(now_s)
        return self._judge.deadlock, self._judge.lasted_s(now_s)

    def _take(self, now_s: float) -> None:
        names = {pid: name for pid, name in self._members().items() if not name.startswith(self._background)}
        before, self._before = self._before, self._probe(names)
        if before is None:
            return
        ranks = find_ranks(names)
        communicators = self._communicators(tuple(names), now_s) if ranks else ()
        self._judge.take(look_at(before, self._before, ranks, communicators), now_s)
        if self._judge.deadlock is None:
            self._stacks = None
        elif self._judge.lasted_s(now_s) >= (NOTICE_S if self._stacks is None else LIMIT_S):
            self._confirm([rank.pid for rank in ranks])

    def _confirm(self, pids: list[int]) -> None:
        """Forget a deadlock of which the Python stacks show that a rank goes on, or waits for something outside."""
        stacks = main_stacks(pids, _STACKS_S)
        before, self._stacks = self._stacks, stacks
        moved = before is not None and any(before.get(pid, stack) != stack for pid, stack in stacks.items())
        sure = self._judge.deadlock is None or self._judge.deadlock.sure or any(map(collective_of, stacks.values()))
        if moved or not sure or self._waits_outside(stacks):
            self._forget()

    def _waits_outside(self, stacks: Mapping[int, tuple[Frame, ...]]) -> bool:
        """Whether an odd rank waits for a disk, for a process that is none of the run's, or for its own GPU."""
        odd = self._judge.deadlock.odd if self._judge.deadlock else frozenset[int]()
        members = self._members()
        for wait in probe_waits([pid for pid in odd if pid in members]):
            told, stack = wait.telling, stacks.get(wait.pid, ())
            if told is None or collective_of(stack):
                continue
            if told.kind == "disk" or (told.kind == "socket" and told.holder not in members):
                return True
            if told.kind != "busy" and stack and stack[0].bare in _GPU_WAITS and self._gpu_works():
                return True
        return False

    def _gpu_works(self) -> bool:
        return self._before is not None and any(gpu.strain >= FLOORS["gpu"] for gpu in self._before.gpus)

    def _communicators(self, pids: tuple[int, ...], now_s: float) -> tuple[Communicator, ...]:
        if now_s < self._ras_from_s:
            return ()
        if self._ras is None:
            found = find_ras(pids, map(read_environment, pids))
            if isinstance(found, str):
                self._ras_from_s = now_s + 2 * _EVERY_S  # a search takes 50 ms, and NCCL may start later
                return ()
            self._ras = found
        try:
            return read_communicators(ask_ras(*self._ras, answer_s=_RAS_S))
        except OSError:
            self._ras, self._ras_from_s = None, now_s + _RAS_AGAIN_S
            return ()

    def _forget(self) -> None:
        self._judge.forget()
        self._stacks = None


def find_ranks(pids: Iterable[int]) -> tuple[Member, ...]:
    """Return the processes that are ranks: by `RANK`, without those that inherited it, or by a GPU that is open."""
    wanted = tuple(pids)
    told = {pid: _member(pid, read_environment(pid)) for pid in wanted}
    ranks = []
    for pid, member in told.items():
        _, fields = read_stat_fields(pid)
        parent = told.get(int(fields[1])) if fields else None
        if member.number >= 0 and not (parent and (parent.number, parent.group) == (member.number, member.group)):
            ranks.append(member)
    if ranks or not any(Path("/dev").glob("nvidia*")):
        return tuple(ranks)
    return tuple(told[pid] for pid in wanted if any(link.startswith(_GPU_LINK) for link in list_open_files(pid)))


def look_at(
    before: ActivitySample, now: ActivitySample, ranks: Iterable[Member], communicators: tuple[Communicator, ...]
) -> Look:
    """Return what the ranks did between two moments."""
    told = {pid: number for one in communicators for number, pid in one.pids.items()}
    members = {member.pid: member for member in ranks}
    alive = [process.pid for process in now.processes if process.pid in members or process.pid in told]
    found = tuple(
        Rank(
            pid=pid,
            number=members[pid].number if pid in members and members[pid].number >= 0 else told.get(pid, -1),
            doing=doing_of(_rates_of(before, now, {pid}), pid, now.gpus),
        )
        for pid in alive
    )
    others = _rates_of(before, now, {process.pid for process in now.processes} - set(alive))
    work = others.cpu >= OTHERS_CPU or max(others.read, others.write) >= FLOORS["read"]
    absent = _absent([members[pid] for pid in alive if pid in members])
    return Look(ranks=found, absent=absent, others_work=work, communicators=communicators)


def _rates_of(before: ActivitySample, now: ActivitySample, pids: set[int]) -> ActivityRates:
    def only(activity: ActivitySample) -> ActivitySample:
        kept = tuple(process for process in activity.processes if process.pid in pids)
        return dataclasses.replace(activity, processes=kept, gpus=())

    return compute_rates(only(before), only(now))


def _absent(ranks: Sequence[Member]) -> tuple[int, ...]:
    """Return the ranks that no process is, of each world that lies on this machine alone."""
    missing = set[int]()
    for group in {rank.group for rank in ranks if 0 < rank.world <= _MOST_WORLD}:
        fellows = [rank for rank in ranks if rank.group == group]
        first = fellows[0].number - fellows[0].place
        places = {rank.place for rank in fellows}
        missing.update(first + place for place in range(fellows[0].world) if place not in places)
    return tuple(sorted(missing))


def _member(pid: int, environment: Mapping[str, str]) -> Member:
    address, port, node = (environment.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "GROUP_RANK"))
    rank, place, size = (_count(environment.get(name, "")) for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    if place < 0 or size < 1:
        place, size = rank, _count(environment.get("WORLD_SIZE", "")) if address in _HERE else 0
    return Member(
        pid=pid,
        number=rank if rank >= 0 else place,
        place=place,
        world=max(size, 0),
        group=(address, port, node),
    )


def _count(text: str) -> int:
    return int(text) if _COUNT.fullmatch(text) else -1
