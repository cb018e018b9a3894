"""Ranks that wait for each other: what each does, what NCCL says of their communicators, and the verdict."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from rlbox.hang.nccl import (
    PendingCall,
    RankNumber,
    RasAddress,
    UnhealthyCommunicator,
    find_ras_address,
    parse_ras_report,
    query_ras_report,
)
from rlbox.hang.stacks import dump_readable_main_python_stacks_by_pid
from rlbox.hang.waits import (
    Pid,
    PythonFrame,
    find_collective_name_or_empty,
    is_collective_or_distributed,
    probe_process_waits_without_stacks,
    probe_remaining_tolerated_sleep_s_or_0,
)
from rlbox.i18n import _, join, ngettext
from rlbox.job.job import FLOORS
from rlbox.system.counters import ActivityRates, ActivitySample, compute_rates, select_computing_gpus_all_if_unmatched
from rlbox.system.gpu import GpuStatus
from rlbox.system.ports import list_fd_link_targets
from rlbox.system.process_table import read_environ_or_empty, read_stat_or_empty_fields

LIMIT_S = 20.0
"""After how long without work of any rank it is a hang: a run that works shows none for 3 s (H200)."""
AFTER_PAUSE_S = 4.0
"""What a rank that slept is given to go on; some of it passes between the look at the clock and that at the sleep."""

MIN_OTHER_CPU, _IDLE_CPU = 0.2, 0.05
_ONE_CORE = 1.2
_SPINS_SM, _SPINS_MEMORY = 90, 2
_FOREIGN_SM = 5
_MOST_NAMED = 4

RankActivity = Literal["works", "spins", "idle", "unclear"]
"""`spins`: waits in a kernel of a GPU. `unclear`: uses a core, or a GPU that another program uses too. Only its Python
stack tells whether it waits: NCCL connects ranks on the CPU, at 100 % of a core."""


@dataclass(frozen=True, kw_only=True)
class RankStatus:
    pid: int
    rank: int
    activity: RankActivity


@dataclass(frozen=True, kw_only=True)
class RankSample:
    """What the ranks do at one moment; `missing_ranks` are those of a world of this machine that no process is.

    `is_whole_world`: no rank is on another machine; `has_remote_ranks`: some are; neither where no size of the world is
    told. `has_working_non_rank_process`: processes of the stage that are no ranks work.
    """

    ranks: tuple[RankStatus, ...]
    missing_ranks: tuple[RankNumber, ...] = ()
    is_whole_world: bool = False
    has_remote_ranks: bool = False
    has_working_non_rank_process: bool = False
    unhealthy_communicators: tuple[UnhealthyCommunicator, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Deadlock:
    """Ranks that wait for each other: who is not where the others wait (`absent_pids`), and a sentence of all.

    `is_collective_seen`: it was seen that one waits in a collective; else their Python stacks have to show it.
    `pending_calls`: the call of each rank as NCCL told it; none where it told nothing. `pids_in_collective` are in a
    collective by NCCL's word. `pids_to_confirm_by_stack`: the Python stack of each has to show that it waits, too.
    """

    absent_pids: frozenset[int] = frozenset()
    description: str
    is_collective_seen: bool = True
    pending_calls: frozenset[tuple[RankNumber, PendingCall]] = frozenset()
    pids_in_collective: frozenset[int] = frozenset()
    pids_to_confirm_by_stack: frozenset[int] = frozenset()


def classify_rank_activity(rates: ActivityRates, pid: int, gpus: Iterable[GpuStatus]) -> RankActivity:
    if any(float(getattr(rates, sign)) >= FLOORS[sign] for sign in ("read", "write", "memory")):
        return "works"
    waits_in_kernel = shares_gpu = False
    for gpu in gpus:
        own = next(((sm, memory) for other, sm, memory in gpu.shares if other == pid), None)
        if own is None:
            continue
        if any(sm >= _FOREIGN_SM for other, sm, _ in gpu.shares if other != pid):
            # an H200 gives two programs turns: a rank that only waits shows 40 to 60 % and memory traffic, as the other
            shares_gpu |= own[0] > 0
            continue
        if own[1] > _SPINS_MEMORY or (own[0] and gpu.power_ratio >= FLOORS["gpu"]):
            return "works"
        waits_in_kernel |= own[0] >= _SPINS_SM
    if shares_gpu:
        return "unclear"
    if rates.cpu < _IDLE_CPU:
        return "idle"
    return "spins" if waits_in_kernel and rates.cpu <= _ONE_CORE else "unclear"


def find_suspected_deadlock(sample: RankSample) -> Deadlock | None:
    ranks, missing = sample.ranks, sample.missing_ranks
    if not ranks or sample.has_working_non_rank_process or any(rank.activity == "works" for rank in ranks):
        return None
    unclear = frozenset(rank.pid for rank in ranks if rank.activity == "unclear")
    spinning = [rank for rank in ranks if rank.activity == "spins"]
    deadlock: Deadlock | None = None
    if sample.unhealthy_communicators:
        deadlock = _find_mismatch(sample)
    elif missing:
        what = _("{names} of {count} never started, or ended; {waiting} for it")
        what = what.format(names=_names(missing), count=len(missing) + len(ranks), waiting=_waiting(ranks))
        deadlock = Deadlock(description=what, is_collective_seen=False)
    elif spinning and not sample.has_remote_ranks:  # they may wait for one that computes there
        idle = [rank for rank in ranks if rank.activity == "idle"]
        missed = _("not called by {names}") if idle else _("each in another one")
        missed = missed.format(names=_names(rank.rank for rank in idle))
        deadlock = Deadlock(
            absent_pids=frozenset(rank.pid for rank in idle),
            description=_("{waiting} in a collective, {missed}").format(waiting=_waiting(spinning), missed=missed),
        )
    elif unclear and sample.is_whole_world:
        unclear = frozenset(rank.pid for rank in ranks)
        deadlock = Deadlock(description=_("{waiting} for each other in collectives").format(waiting=_waiting(ranks)))
    return deadlock and dataclasses.replace(deadlock, pids_to_confirm_by_stack=unclear)


def stacks_confirm_deadlock(deadlock: Deadlock, main_stacks: Mapping[Pid, tuple[PythonFrame, ...]]) -> bool:
    """Return whether main threads stand where a deadlock says that they wait; stacks begin with the inner frame."""
    for pid in deadlock.pids_to_confirm_by_stack:
        frame = next(iter(main_stacks.get(pid, ())), None)
        if frame is None:
            return False
        waits_for_gpu = pid in deadlock.pids_in_collective and frame.lowercase_unqualified_name in _GPU_WAITS
        if not (waits_for_gpu or is_collective_or_distributed(frame)):
            return False
    return deadlock.is_collective_seen or any(map(find_collective_name_or_empty, main_stacks.values()))


class DeadlockTracker:
    def __init__(self) -> None:
        self.deadlock: Deadlock | None = None
        self._since_s = 0.0

    def add_sample(self, sample: RankSample, now_s: float) -> None:
        """Add a sample; a deadlock in which somebody went on since the one before begins anew.

        NCCL answers late, or once not at all: what it told stays, and the time goes on.
        """
        before, found = self.deadlock, find_suspected_deadlock(sample)
        # where one of two only knows less, nobody worked between them
        if (
            before is None
            or found is None
            or (before.absent_pids and found.absent_pids and before.absent_pids != found.absent_pids)
            or (before.pending_calls and found.pending_calls and before.pending_calls != found.pending_calls)
        ):
            self.deadlock, self._since_s = found, now_s
        elif sample.unhealthy_communicators or not before.pending_calls:
            self.deadlock = found

    def get_duration_s(self, now_s: float) -> float:
        return now_s - self._since_s if self.deadlock else 0.0


class DeadlockStatus(NamedTuple):
    deadlock: Deadlock | None
    duration_s: float


def _find_mismatch(sample: RankSample) -> Deadlock | None:
    here = {rank.pid for rank in sample.ranks}
    pids: dict[int, int] = {}
    behind: dict[int, PendingCall] = {}
    ahead: dict[int, PendingCall] = {}
    gone: set[int] = set()
    for told in sample.unhealthy_communicators:
        communicator = _name_unnamed_ranks(told, sample.ranks)
        pids |= communicator.pid_of_rank
        behind |= {rank: call for rank, call in communicator.missed_call_by_rank.items() if rank not in behind}
        ahead |= {rank: call for rank, call in communicator.waiting_call_by_rank.items() if rank not in ahead}
        gone |= communicator.missing_ranks
    if any(pids[rank] not in here for rank in {*behind, *ahead} - gone):  # of another machine, and not seen from here
        return None
    if gone:
        left = [rank for rank in sample.ranks if rank.rank not in gone]
        what = _("{names} ended, or does not answer NCCL; {waiting} for it in a collective")
        what = what.format(names=_names(gone), waiting=_waiting(left))
        # NCCL tells no calls of a communicator that is incomplete: a wait for the GPU is one for the rank that is gone
        return Deadlock(description=what, pids_in_collective=frozenset(rank.pid for rank in left))
    late = {rank: call for rank, call in behind.items() if rank not in ahead}
    if late:
        call = Counter(late.values()).most_common(1)[0][0]
        waiting = [rank for rank in sample.ranks if ahead.get(rank.rank) == call]
        operation = f"{call.operation} {call.call_number}"
        what = _("{waiting} in {operation}, not called by {names}")
        what = what.format(waiting=_waiting(waiting), operation=operation, names=_names(late))
        odd = set(late)
    else:
        counts = Counter(ahead.values())
        odd = {rank for rank, at in ahead.items() if counts[at] < max(counts.values())} or set(ahead)
        several = len({each.communicator for each in counts}) > 1
        texts = [
            join(" ", (_names(rank for rank, at in ahead.items() if at == each), each.operation, each.call_number))
            + (_(" of communicator {name}").format(name=each.communicator) if several else "")
            for each in counts
        ]
        what = join(": ", [_("ranks call different collectives"), *([join(", ", texts)] if texts else [])])
    return Deadlock(
        absent_pids=frozenset(pids[rank] for rank in odd),
        description=what,
        pending_calls=frozenset((*behind.items(), *ahead.items())),
        pids_in_collective=frozenset(pids[rank] for rank in ahead),
    )


def _name_unnamed_ranks(communicator: UnhealthyCommunicator, ranks: Sequence[RankStatus]) -> UnhealthyCommunicator:
    """Add the ranks that NCCL only counts, where these are all others of this machine: a group of all ranks."""
    named = set(communicator.pid_of_rank.values())
    others = [rank for rank in ranks if rank.pid not in named and rank.rank >= 0]
    counts = {
        operation: launched | {rank.rank: unnamed.launch_count for rank in others}
        for operation, launched in communicator.launch_counts_of_named_ranks.items()
        if (unnamed := communicator.unnamed_ranks.get(operation)) and unnamed.number_of_ranks == len(others)
    }
    if not counts:
        return communicator
    return dataclasses.replace(
        communicator,
        launch_counts_of_named_ranks=communicator.launch_counts_of_named_ranks | counts,
        pid_of_rank=communicator.pid_of_rank | {rank.rank: rank.pid for rank in others},
    )


def _names(numbers: Iterable[int]) -> str:
    known = sorted(number for number in numbers if number >= 0)
    if not known:
        return _("a process")
    shown = ", ".join(map(str, known[:_MOST_NAMED])) + (" …" if len(known) > _MOST_NAMED else "")
    return ngettext("rank {shown}", "ranks {shown}", len(known)).format(shown=shown)


def _waiting(ranks: Sequence[RankStatus]) -> str:
    if not ranks:
        return _("the others wait")
    names = _names(rank.rank for rank in ranks)
    return ngettext("{names} waits", "{names} wait", len(ranks)).format(names=names)


_QUIET_S, _EVERY_S, _FIRST_STACKS_S = 4.0, 2.0, 8.0
_RAS_S, _RAS_AGAIN_S = 2.0, 30.0
_STACKS_S = 5.0
_HERE = ("127.0.0.1", "localhost", "::1")
_GPU_LINK = "/dev/nvidia"
_MOST_WORLD = 1024
_COUNT = re.compile(r"[0-9]{1,6}")
_GPU_WAITS = frozenset({"synchronize", "item", "tolist", "cpu", "numpy", "wait", "nonzero", "to", "copy_"})

ActivityProbe = Callable[[Iterable[int]], ActivitySample]


@dataclass(frozen=True, kw_only=True)
class _RankProcess:
    """A process that is a rank by its environment or by a GPU that it has open; -1: not told.

    `local_rank` is its number among the `local_world_size` ranks of its group on this machine, `world_size` counts
    those of all machines; 0: how many these are is not told.
    """

    pid: int
    rank: int = -1
    local_rank: int = -1
    local_world_size: int = 0
    world_size: int = 0
    rendezvous: tuple[str, str, str] = ("", "", "")


class RankMonitor:
    """Looks every two seconds, from four seconds after the log was last heard; a look costs some ms, and stops nobody.

    It asks for Python stacks only after 8 s and at `LIMIT_S`. While a rank sleeps for a time that is known and not
    too long (it asks a server again), the others wait for it rightly.
    """

    def __init__(
        self, list_names: Callable[[], Mapping[int, str]], ignored_prefixes: tuple[str, ...], probe: ActivityProbe
    ) -> None:
        self._members, self._background, self._probe = list_names, ignored_prefixes, probe
        self._tracker = DeadlockTracker()
        self._looked_s = -math.inf
        self._before: ActivitySample | None = None
        self._ras: RasAddress | None = None
        self._ras_from_s = -math.inf
        self._stacks: dict[int, tuple[PythonFrame, ...]] | None = None
        self._sleeps_until_s = -math.inf

    def probe_deadlock_if_due(self, now_s: float, last_output_s: float) -> DeadlockStatus:
        if now_s - last_output_s < _QUIET_S:
            self._forget()
            self._before = None
        elif now_s - self._looked_s >= _EVERY_S or self._must_confirm(now_s):
            self._looked_s = now_s
            self._take(now_s)
        if now_s < self._sleeps_until_s:
            return DeadlockStatus(None, 0.0)
        return DeadlockStatus(self._tracker.deadlock, self._tracker.get_duration_s(now_s))

    def _take(self, now_s: float) -> None:
        names = {pid: name for pid, name in self._members().items() if not name.startswith(self._background)}
        before, self._before = self._before, self._probe(names)
        if before is None:
            return
        ranks = find_rank_processes_else_gpu_processes(names)
        communicators = self._communicators(tuple(names), now_s) if ranks else ()
        self._tracker.add_sample(_sample_ranks(before, self._before, ranks, communicators), now_s)
        if self._tracker.deadlock is None:
            self._stacks, self._sleeps_until_s = None, -math.inf
        elif self._must_confirm(now_s):
            lasted_s = self._tracker.get_duration_s(now_s)
            self._confirm(self._tracker.deadlock, ranks)
            pause_s = probe_remaining_tolerated_sleep_s_or_0([rank.pid for rank in ranks], lasted_s)
            self._sleeps_until_s = now_s + pause_s + AFTER_PAUSE_S if pause_s else -math.inf

    def _must_confirm(self, now_s: float) -> bool:
        limit_s = _FIRST_STACKS_S if self._stacks is None else LIMIT_S
        return now_s >= self._sleeps_until_s and self._tracker.get_duration_s(now_s) >= limit_s

    def _confirm(self, deadlock: Deadlock, ranks: Sequence[_RankProcess]) -> None:
        """Forget a deadlock of which the Python stacks show that a rank goes on, or waits for something outside."""
        stacks = dump_readable_main_python_stacks_by_pid([rank.pid for rank in ranks], _STACKS_S)
        before, self._stacks = self._stacks, stacks
        has_moved = before is not None and any(before.get(pid, stack) != stack for pid, stack in stacks.items())
        if has_moved or not stacks_confirm_deadlock(deadlock, stacks) or self._waits_outside(deadlock, stacks):
            self._forget()
        elif not deadlock.pending_calls:
            self._tracker.deadlock = _name_calls(deadlock, ranks, stacks)

    def _waits_outside(self, deadlock: Deadlock, stacks: Mapping[int, tuple[PythonFrame, ...]]) -> bool:
        """Whether an odd rank waits for a disk, for a process that is none of the run's, or for its own GPU."""
        members = self._members()
        for wait in probe_process_waits_without_stacks([pid for pid in deadlock.absent_pids if pid in members]):
            told, stack = wait.decisive_thread, stacks.get(wait.pid, ())
            if told is None or find_collective_name_or_empty(stack):
                continue
            if told.kind == "disk" or (told.kind == "socket" and told.holder_pid_or_0 not in members):
                return True
            gpus = select_computing_gpus_all_if_unmatched(self._before.gpus, {wait.pid}) if self._before else []
            waits_for_gpu = told.kind != "busy" and stack and stack[0].lowercase_unqualified_name in _GPU_WAITS
            if waits_for_gpu and any(gpu.power_ratio >= FLOORS["gpu"] for gpu in gpus):
                return True
        return False

    def _communicators(self, pids: tuple[int, ...], now_s: float) -> tuple[UnhealthyCommunicator, ...]:
        if now_s < self._ras_from_s:
            return ()
        if self._ras is None:
            self._ras = find_ras_address(pids, map(read_environ_or_empty, pids))
        if self._ras is None:
            self._ras_from_s = now_s + 2 * _EVERY_S  # a search takes 50 ms, and NCCL may start later
            return ()
        try:
            return parse_ras_report(query_ras_report(*self._ras, timeout_s=_RAS_S))
        except OSError:
            self._ras, self._ras_from_s = None, now_s + _RAS_AGAIN_S
            return ()

    def _forget(self) -> None:
        self._tracker.deadlock = None
        self._stacks, self._sleeps_until_s = None, -math.inf


def _name_calls(
    deadlock: Deadlock, ranks: Sequence[_RankProcess], stacks: Mapping[int, tuple[PythonFrame, ...]]
) -> Deadlock:
    calls = [
        _("rank {rank} in {frame}").format(rank=rank.rank, frame=frame)
        for rank in sorted(ranks, key=lambda rank: rank.rank)
        if rank.rank >= 0 and (frame := next(filter(is_collective_or_distributed, stacks.get(rank.pid, ())), None))
    ]
    if not calls:
        return deadlock
    described = join(": ", (deadlock.description, join(", ", calls[:_MOST_NAMED])))
    return dataclasses.replace(deadlock, description=described)


def find_rank_processes_else_gpu_processes(pids: Iterable[int]) -> tuple[_RankProcess, ...]:
    """Return the processes that are ranks: by `RANK`, without those that inherited it, or by a GPU that is open."""
    wanted = tuple(pids)
    told = {pid: _member(pid, read_environ_or_empty(pid)) for pid in wanted}
    ranks = []
    for pid, member in told.items():
        _, fields = read_stat_or_empty_fields(pid)
        parent = told.get(int(fields[1])) if fields else None
        if member.rank >= 0 and not (parent and (parent.rank, parent.rendezvous) == (member.rank, member.rendezvous)):
            ranks.append(member)
    if ranks or not any(Path("/dev").glob("nvidia*")):
        return tuple(ranks)
    return tuple(told[pid] for pid in wanted if any(link.startswith(_GPU_LINK) for link in list_fd_link_targets(pid)))


def _sample_ranks(
    earlier: ActivitySample,
    later: ActivitySample,
    ranks: Iterable[_RankProcess],
    communicators: tuple[UnhealthyCommunicator, ...],
) -> RankSample:
    told = {pid: number for one in communicators for number, pid in one.pid_of_rank.items()}
    members = {member.pid: member for member in ranks}
    alive = [process.pid for process in later.processes if process.pid in members or process.pid in told]
    found = tuple(
        RankStatus(
            pid=pid,
            rank=members[pid].rank if pid in members and members[pid].rank >= 0 else told.get(pid, -1),
            activity=classify_rank_activity(_rates_of(earlier, later, {pid}), pid, later.gpus),
        )
        for pid in alive
    )
    others = _rates_of(earlier, later, {process.pid for process in later.processes} - set(alive))
    work = others.cpu >= MIN_OTHER_CPU or max(others.read, others.write) >= FLOORS["read"]
    absent = _absent([members[pid] for pid in alive if pid in members])
    return RankSample(
        ranks=found,
        missing_ranks=absent,
        is_whole_world=all(pid in members and members[pid].world_size == len(alive) for pid in alive),
        has_remote_ranks=any(member.world_size > len(alive) + len(absent) for member in members.values()),
        has_working_non_rank_process=work,
        unhealthy_communicators=communicators,
    )


def _rates_of(before: ActivitySample, now: ActivitySample, pids: set[int]) -> ActivityRates:
    own = (
        dataclasses.replace(each, processes=tuple(p for p in each.processes if p.pid in pids), gpus=())
        for each in (before, now)
    )
    return compute_rates(*own)


def _absent(ranks: Sequence[_RankProcess]) -> tuple[int, ...]:
    """Return the ranks that no process is, of each world that lies on this machine alone."""
    missing = set[int]()
    for group in {rank.rendezvous for rank in ranks if 0 < rank.local_world_size <= _MOST_WORLD}:
        fellows = [rank for rank in ranks if rank.rendezvous == group]
        first = fellows[0].rank - fellows[0].local_rank
        places = {rank.local_rank for rank in fellows}
        missing.update(first + place for place in range(fellows[0].local_world_size) if place not in places)
    return tuple(sorted(missing))


def _member(pid: int, environment: Mapping[str, str]) -> _RankProcess:
    address, port, node = (environment.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "GROUP_RANK"))
    rank, place, size = (_count(environment.get(name, "")) for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    if place < 0 or size < 1:
        place, size = rank, _count(environment.get("WORLD_SIZE", "")) if address in _HERE else 0
    return _RankProcess(
        pid=pid,
        rank=rank if rank >= 0 else place,
        local_rank=place,
        local_world_size=max(size, 0),
        world_size=max(_count(environment.get("WORLD_SIZE", "")), 0),
        rendezvous=(address, port, node),
    )


def _count(text: str) -> int:
    return int(text) if _COUNT.fullmatch(text) else -1
