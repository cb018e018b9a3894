"""How much of the machine a run's processes get of what they could use, and the clock that goes no faster than they do.

A limit is meant for processes that have a machine. On one that gives them a third of the cores that they could use,
they need three times as long for the same work, and none of it says that they hang: limits are counted by `PaceClock`.
Who waits for something else than a core (a lock, an answer, a disk) has all that it could use, however busy it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from rlbox.amounts import duration_text
from rlbox.machine.counters import WAITS_CORES, Pace

_MOST = 4096
_LEAST_S, _MOSTLY = 5.0, 2 / 3
_STARVED = 0.5
"""With less than this share of what they could use, processes are slow because the machine is busy."""


@dataclass(frozen=True, kw_only=True)
class Starved:
    """Processes that got `share` (0-1) of what they could have used over `seconds`; `others` had so many cores."""

    share: float
    seconds: float
    others: float

    def text(self, cores: float, names: Sequence[str]) -> str:
        """Return it as the first half of a cause; `names` are those that had most, none when they cannot be seen."""
        who = f": {', '.join(names)}" if names else ", outside of what can be seen from here"
        return (
            f"this machine is busy: over {duration_text(self.seconds)} the stage's processes got "
            f"{100 * self.share:.0f} % of the time that they could have used of a core; others had {self.others:.1f} "
            f"of {cores:g} cores{who}"
        )


class PaceClock:
    """Time as the processes of a run have it: it stands still never, and goes `slowest` (0-1] of real time at least."""

    def __init__(self, now_s: float) -> None:
        self.slowest = 1.0
        self._last = (now_s, now_s, 1.0)  # own time, real time, rate: in one, for threads of services read it
        self._paces: deque[tuple[float, Pace]] = deque(maxlen=_MOST)

    def now_s(self, real_s: float) -> float:
        """Return the time at `real_s`, a clock that only goes on; since the last look it goes as it went before it."""
        own_s, at_s, rate = self._last
        return own_s + (real_s - at_s) * rate

    def take(self, pace: Pace, real_s: float) -> None:
        """Go on with the pace of the processes that was measured up to `real_s`."""
        self._last = (self.now_s(real_s), real_s, max(self.slowest, pace.share))
        self._paces.append((real_s, pace))

    def starved(self, since_s: float) -> Starved | None:
        """Return how the processes were kept from their work for most of the time since `since_s` (real); None: not.

        Who began slowly and then waits for something else was not: a hang on a busy machine is a hang.
        """
        paces = [pace for at, pace in self._paces if at > since_s]
        seconds = sum(pace.seconds for pace in paces)
        kept = [pace for pace in paces if pace.wanted > WAITS_CORES and pace.share < _STARVED]
        if seconds < _LEAST_S or sum(pace.seconds for pace in kept) < _MOSTLY * seconds:
            return None
        wanted = sum(pace.wanted * pace.seconds for pace in kept)
        got = sum(min(pace.got, pace.wanted) * pace.seconds for pace in kept)
        others = sum(pace.others * pace.seconds for pace in paces) / seconds
        return Starved(share=got / wanted, seconds=seconds, others=others)
