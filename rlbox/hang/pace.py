"""The clock that goes no faster than a run's processes, and the one of a start, which waits while it gets on.

A limit is meant for processes that have a machine. On one that gives them a third of the cores that they could use,
they need three times as long for the same work, and none of it says that they hang: limits are counted by `PaceClock`.
Who waits for something else than a core (a lock, an answer, a disk) has all that it could use, however busy it is.
A service that starts may besides take longer than its limit for as long as it is seen to get on: `StartClock`.
"""

from __future__ import annotations

from collections import deque

from rlbox.hang.slowness import Slowness, find_slowness
from rlbox.job.phase import FLOORS
from rlbox.system.counters import ActivityRates, CpuUsage

_MOST = 4096
_SEEN_S, _LEAST_SEEN_S, _DISK_SEEN_S = 5.0, 1.0, 30.0
"""Over so long a start must have been seen to get on; a quarter of its limit where that is shorter.

A hang that follows is found so much later at most. Of one that sleeps until a disk answers it is the last: a slow one
is asked for megabytes at once, which count when they are there.
"""
_LOADS = ("read", "write", "memory")
_COMPUTES = 2.0
"""How many times its limit a start may take that only computes: a server that polls looks like one that compiles."""


class PaceClock:
    """Time as the processes of a run have it: it stands still never, and goes `slowest` (0-1] of real time at least."""

    def __init__(self, now_s: float) -> None:
        self.slowest = 1.0
        self._last = (now_s, now_s, 1.0)  # own time, real time, rate: in one, for threads of services read it
        self._paces: deque[tuple[float, CpuUsage]] = deque(maxlen=_MOST)

    def now_s(self, real_s: float) -> float:
        """Return the time at `real_s`, a clock that only goes on; since the last look it goes as it went before it."""
        own_s, at_s, rate = self._last
        return own_s + (real_s - at_s) * rate

    def take(self, pace: CpuUsage, real_s: float) -> None:
        """Go on with the pace of the processes that was measured up to `real_s`."""
        self._last = (self.now_s(real_s), real_s, max(self.slowest, pace.share))
        self._paces.append((real_s, pace))

    def slowness(self, since_s: float) -> Slowness | None:
        """Return what kept the processes from their work for most of the time since `since_s` (real); None: nothing."""
        return find_slowness([pace for at, pace in self._paces if at > since_s])


class StartClock:
    """How long a service may take to start: `limit_s` by the clock of its pace, and longer while it gets on.

    What reads, writes or fills memory may take `stretch` times its limit, by the clock on the wall; what only computes
    twice its limit. `read_bytes` is what its processes read so far.
    """

    def __init__(self, limit_s: float, stretch: float, own_s: float, real_s: float) -> None:
        self._limit_s, self._stretch = limit_s, stretch
        self._own_s, self._real_s = own_s, real_s
        self._recent: deque[tuple[float, ActivityRates]] = deque()
        self._waits_disk = False
        self.read_bytes = 0.0

    def take(self, rates: ActivityRates, real_s: float, *, waits_disk: bool = False) -> None:
        """Take what the service's processes did up to `real_s`, and whether one of them sleeps until a disk answers."""
        self._waits_disk = waits_disk
        self.read_bytes += rates.read * rates.seconds
        self._recent.append((real_s, rates))
        while len(self._recent) > 1 and real_s - self._recent[0][0] >= _DISK_SEEN_S:
            self._recent.popleft()

    def took_s(self, real_s: float) -> float:
        """Return how long it has taken by the clock on the wall, s."""
        return real_s - self._real_s

    def over(self, own_s: float) -> bool:
        """Return whether its limit is over."""
        return own_s - self._own_s > self._limit_s

    def late(self, own_s: float, real_s: float) -> bool:
        """Return whether it has taken longer than it may."""
        if not self.over(own_s):
            return False
        times = self.took_s(real_s) / self._limit_s
        if times > self._stretch:
            return True
        seen_s = _DISK_SEEN_S if self._waits_disk else min(_SEEN_S, max(_LEAST_SEEN_S, self._limit_s / 4))
        since_s = real_s - seen_s
        return not (self._gets_on(since_s, *_LOADS) or (self._gets_on(since_s, "cpu") and times <= _COMPUTES))

    def _gets_on(self, since_s: float, *signs: str) -> bool:
        recent = [rates for at, rates in self._recent if at > since_s]
        seconds = sum(rates.seconds for rates in recent)
        return bool(recent) and any(
            sum(getattr(rates, sign) * rates.seconds for rates in recent) >= FLOORS[sign] * seconds for sign in signs
        )
