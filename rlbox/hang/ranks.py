"""Judge whether the ranks of a training wait for each other while none of them works.

A rank that waits in a collective of NCCL spins: all of a core, and a GPU that is busy without touching its memory. So
neither CPU nor the GPU's utilization tells a hang from work; what tells it is that *no* rank does anything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rlbox.hang.ras import ANY, Communicator
from rlbox.job.phase import FLOORS
from rlbox.system.counters import ActivityRates
from rlbox.system.gpu import GpuStatus

NOTICE_S, LIMIT_S = 8.0, 20.0
"""After how long without work of any rank it is told, and is a hang: a run that works shows none for 3 s (H200)."""

OTHERS_CPU, _IDLE_CPU = 0.2, 0.05
_ONE_CORE = 1.2
_SPINS_SM, _SPINS_MEMORY = 90, 2
_FOREIGN_SM = 5
_MOST_NAMED = 4

Doing = Literal["works", "spins", "idle"]


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A process that is one of several; `number` is -1 where its environment does not tell."""

    pid: int
    number: int
    doing: Doing


@dataclass(frozen=True, kw_only=True)
class Look:
    """What the ranks do at one moment; `absent` are those of a world of this machine that no process is.

    `others_work`: processes of the stage that are no ranks work. `communicators` are those that are not well.
    """

    ranks: tuple[Rank, ...]
    absent: tuple[int, ...] = ()
    others_work: bool = False
    communicators: tuple[Communicator, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Deadlock:
    """Ranks that wait for each other: which processes are not where the others wait (`odd`), and a sentence of all.

    `sure`: it was seen that one waits in a collective; else their Python stacks have to show it. `calls`: rank,
    operation and call as NCCL told them; none where it told nothing.
    """

    odd: frozenset[int]
    what: str
    sure: bool = True
    calls: frozenset[tuple[int, str, int]] = frozenset()

    def went_on(self, later: Deadlock) -> bool:
        """Whether somebody worked between this one and a later one: not when one of them only knows less."""
        return any(a and b and a != b for a, b in ((self.odd, later.odd), (self.calls, later.calls)))


def doing_of(rates: ActivityRates, pid: int, gpus: Iterable[GpuStatus]) -> Doing:
    """Return what one rank does, from what its process did (`rates`, its own) and what the GPUs show of it."""
    if any(float(getattr(rates, sign)) >= FLOORS[sign] for sign in ("read", "write", "memory")):
        return "works"
    waits_in_kernel = False
    for gpu in gpus:
        share = next(((sm, memory) for other, sm, memory in gpu.shares if other == pid), None)
        foreign = any(sm >= _FOREIGN_SM for other, sm, _ in gpu.shares if other != pid)
        strained = gpu.strain >= FLOORS["gpu"]
        if share and (share[1] > _SPINS_MEMORY or (strained and share[0] and not foreign)):
            return "works"
        waits_in_kernel |= bool(share and share[0] >= _SPINS_SM)
    if rates.cpu < _IDLE_CPU:
        return "idle"
    return "spins" if waits_in_kernel and rates.cpu <= _ONE_CORE else "works"


def find_deadlock(look: Look) -> Deadlock | None:
    """Return how the ranks wait for each other; None where one works, or nothing shows that they do."""
    if not look.ranks or look.others_work or any(rank.doing == "works" for rank in look.ranks):
        return None
    if look.communicators:
        return _told_by_nccl(look)
    if look.absent:
        world = len(look.absent) + len(look.ranks)
        what = f"{_names(look.absent)} of {world} never started, or ended; {_waiting(look.ranks)} for it"
        return Deadlock(odd=frozenset(), what=what, sure=False)
    spinning = [rank for rank in look.ranks if rank.doing == "spins"]
    idle = [rank for rank in look.ranks if rank.doing == "idle"]
    if not spinning:
        return None
    missed = (
        f"not called by {_names(rank.number for rank in idle)}" if idle else "each in another one, or in other order"
    )
    return Deadlock(odd=frozenset(rank.pid for rank in idle), what=f"{_waiting(spinning)} in a collective, {missed}")


class RankJudge:
    """Takes looks at the ranks in the order of time, and says since when they have been waiting for each other."""

    def __init__(self) -> None:
        self.deadlock: Deadlock | None = None
        self._since_s = 0.0

    def take(self, look: Look, now_s: float) -> None:
        """Take a look; a deadlock in which somebody went on since the one before begins anew.

        NCCL answers late, or once not at all: what it told stays, and the time goes on.
        """
        before, found = self.deadlock, find_deadlock(look)
        if before is None or found is None or before.went_on(found):
            self.deadlock, self._since_s = found, now_s
        elif look.communicators or not before.calls:
            self.deadlock = found

    def forget(self) -> None:
        """The stage went on, or what was seen is no deadlock."""
        self.deadlock = None

    def lasted_s(self, now_s: float) -> float:
        """Return for how long they have been waiting; 0 when they do not."""
        return now_s - self._since_s if self.deadlock else 0.0


def _told_by_nccl(look: Look) -> Deadlock | None:
    here = {rank.pid for rank in look.ranks}
    pids: dict[int, int] = {}
    behind: dict[int, tuple[str, int]] = {}
    ahead: dict[int, tuple[str, int]] = {}
    gone: set[int] = set()
    for one in look.communicators:
        pids.update(one.pids)
        behind = {**one.behind, **behind}
        ahead = {**one.ahead, **ahead}
        gone.update(one.missing)
    if any(pids[rank] not in here for rank in {*behind, *ahead} - gone):  # of another machine, and not seen from here
        return None
    if gone:
        left = [rank for rank in look.ranks if rank.number not in gone]
        what = f"{_names(gone)} ended, or does not answer NCCL; {_waiting(left)} for it in a collective"
        return Deadlock(odd=frozenset(), what=what)
    calls = frozenset((rank, *call) for rank, call in (*behind.items(), *ahead.items()))
    late = {rank: call for rank, call in behind.items() if rank not in ahead}
    if late:
        call = Counter(late.values()).most_common(1)[0][0]
        waiting = [rank for rank in look.ranks if ahead.get(rank.number) == call]
        what = f"{_waiting(waiting)} in {_call(*call)}, not called by {_names(late)}"
        return Deadlock(odd=frozenset(pids[rank] for rank in late), what=what, calls=calls)
    places = Counter(ahead.values())
    odd = {rank for rank, place in ahead.items() if places[place] < max(places.values())} or set(ahead)
    texts = (f"{_names(rank for rank, at in ahead.items() if at == place)} {_call(*place)}" for place in places)
    what = f"ranks call different collectives: {', '.join(texts)}"
    return Deadlock(odd=frozenset(pids[rank] for rank in odd), what=what, calls=calls)


def _call(operation: str, call: int) -> str:
    return f"collective {call}" if operation == ANY else f"{operation} {call}"


def _names(numbers: Iterable[int]) -> str:
    known = sorted(number for number in numbers if number >= 0)
    if not known:
        return "a process"
    shown = ", ".join(map(str, known[:_MOST_NAMED])) + (" …" if len(known) > _MOST_NAMED else "")
    return f"rank {shown}" if len(known) == 1 else f"ranks {shown}"


def _waiting(ranks: Sequence[Rank]) -> str:
    if not ranks:
        return "the others wait"
    names = _names(rank.number for rank in ranks)
    return f"{names} waits" if len(ranks) == 1 else f"{names} wait"
