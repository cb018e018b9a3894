"""Why processes are slow though nothing is wrong with them: the limit of their container, others, a disk.

Each is told from the looks at their pace (`machine/counters.py`) over a time: what was so for most of it is a cause.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlbox.amounts import duration_text, size_text
from rlbox.job.phase import FLOORS
from rlbox.system.counters import WAITS_CORES, CpuUsage

_By = Literal["limit", "cores", "disk"]
_LEAST_S, _MOSTLY = 5.0, 2 / 3
_STARVED = 0.5
"""With less than this share of what they could use, processes are slow because something keeps them from it."""
_DISK = 0.5
"""Who waits for a disk longer than this, and is given bytes by it all the while, is slow because of it."""


@dataclass(frozen=True, kw_only=True)
class Slowness:
    """Over `seconds` something kept processes from their work.

    Of `limit` and `cores`, `share` (0-1) is what they got of what they could have used; of `disk` the part of the time
    in which they waited for one. `amount`: the cores of the limit; the cores that others had; bytes a second that the
    disk moved for them.
    """

    by: _By
    share: float
    seconds: float
    amount: float

    def text(self, cores: float, names: Sequence[str]) -> str:
        """Return it as the first half of a cause; `names` are those that had most, none when they cannot be seen."""
        span, share = duration_text(self.seconds), f"{100 * self.share:.0f} %"
        if self.by == "limit":
            return (
                f"the container's own CPU limit ({self.amount:g} cores: --cpus, or a pod's) held the stage's processes "
                f"back {100 - 100 * self.share:.0f} % of the time, over {span}"
            )
        if self.by == "disk":
            who = f"; others moved: {', '.join(names)}" if names else ", and nobody else who is seen from here used it"
            return (
                f"this machine's disk is busy or slow: over {span} the stage's processes waited for it {share} of the "
                f"time, and it moved {size_text(self.amount)}/s for them{who}"
            )
        who = f": {', '.join(names)}" if names else ", outside of what can be seen from here"
        return (
            f"this machine is busy: over {span} the stage's processes got {share} of the time that they could have "
            f"used of a core; others had {self.amount:.1f} of {cores:g} cores{who}"
        )


REMEDIES = {
    "limit": "give the container more cores: run.cpus of the target, or the limit of what was rented",
    "cores": "end what else works on this machine, or run on another",
    "disk": "end what else uses that disk, or copy what is read to a faster one",
}


def find_slowness(paces: Sequence[CpuUsage]) -> Slowness | None:
    """Return what kept processes from their work for most of the time of these looks; None: nothing did.

    Where now one thing did and now another (a limit, on a machine that is busy, too), it is the one that did so
    longest. Who began slowly and then waits for something else was not: a hang on a busy machine is a hang. Nor is a
    disk busy that moves nothing.
    """
    seconds = math.fsum(pace.seconds for pace in paces)
    if seconds < _LEAST_S:
        return None
    moved = _sum(paces, "moved") / seconds
    kept: dict[_By, list[CpuUsage]] = {"limit": [], "cores": [], "disk": []}
    for pace in paces:
        if reason := _kept_by(pace, moves=moved >= FLOORS["read"]):
            kept[reason].append(pace)
    times = {by: math.fsum(pace.seconds for pace in some) for by, some in kept.items()}
    if math.fsum(times.values()) < _MOSTLY * seconds:
        return None
    by = max(times, key=lambda by: times[by])
    if by == "limit":
        got, held = _sum(kept[by], "got"), _sum(kept[by], "held")
        return Slowness(by=by, share=got / (got + held), seconds=seconds, amount=kept[by][-1].limit or 0.0)
    if by == "cores":
        got = math.fsum(min(pace.got, pace.wanted) * pace.seconds for pace in kept[by])
        others = _sum(paces, "others") / seconds
        return Slowness(by=by, share=got / _sum(kept[by], "wanted"), seconds=seconds, amount=others)
    return Slowness(by=by, share=_sum(paces, "disk") / seconds, seconds=seconds, amount=moved)


def _kept_by(pace: CpuUsage, *, moves: bool) -> _By | None:
    """Return what kept processes from their work at one look; `moves`: the disk gives them something over all looks."""
    if pace.limit is not None and pace.held_share > 1 - _STARVED:
        return "limit"
    if pace.wanted > WAITS_CORES and pace.share < _STARVED:
        return "cores"
    return "disk" if moves and pace.disk > _DISK else None


def _sum(paces: Sequence[CpuUsage], field: str) -> float:
    """Return a rate of all looks summed over their time."""
    return math.fsum(getattr(pace, field) * pace.seconds for pace in paces)
