"""Why processes are slow though nothing is wrong with them: the limit of their container, other processes, a disk."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlbox.amounts import decimal_size_text, duration_text
from rlbox.job.phase import FLOORS
from rlbox.system.counters import WAITS_CORES, ActivityRates, CpuUsage

SlownessCause = Literal["limit", "cores", "disk"]
_LEAST_S, _MOSTLY = 5.0, 2 / 3
_STARVED = 0.6
"""With less than this share of what they could use, processes are slow because something keeps them from it.

Half of a core is what they get beside one other group of processes (autogroup), so the share must lie above it.
"""
_DISK = 0.5
"""Who waits for a disk longer than this, and is given bytes by it all the while, is slow because of it."""


@dataclass(frozen=True, kw_only=True)
class Slowness:
    """Over `measured_s` something kept processes from their work.

    `used_share` (0-1) is what they got of what they could have used, `disk_wait_share` the part of the time in which
    they waited for a disk. What is not of `cause` is 0.
    """

    cause: SlownessCause
    measured_s: float
    used_share: float = 0.0
    limit_cores: float = 0.0
    other_processes_cores: float = 0.0
    disk_wait_share: float = 0.0
    disk_bytes_per_s: float = 0.0

    def describe(self, machine_cores: float) -> str:
        """Return it as the first half of a cause; the machine has `machine_cores`."""
        span, used = duration_text(self.measured_s), f"{100 * self.used_share:.0f} %"
        if self.cause == "limit":
            return (
                f"the container's own CPU limit ({self.limit_cores:g} cores: --cpus, or a pod's) held the stage's "
                f"processes back {100 - 100 * self.used_share:.0f} % of the time, over {span}"
            )
        if self.cause == "disk":
            return (
                f"this machine's disk is busy or slow: over {span} the stage's processes waited for it "
                f"{100 * self.disk_wait_share:.0f} % of the time, and it moved "
                f"{decimal_size_text(self.disk_bytes_per_s)}/s for them"
            )
        return (
            f"this machine is busy: over {span} the stage's processes got {used} of the time that they could have "
            f"used of a core; others had {self.other_processes_cores:.1f} of {machine_cores:g} cores"
        )


REMEDIES = {
    "limit": "give the container more cores: run.cpus of the target, or the limit of what was rented",
    "cores": "end what else works on this machine, or run on another",
    "disk": "end what else uses that disk, or copy what is read to a faster one",
}


def find_slowness(usages: Sequence[CpuUsage]) -> Slowness | None:
    """Return what kept processes from their work for most of the time of these looks; None: nothing did.

    Where now one thing did and now another (a limit, on a machine that is busy, too), it is the one that did so
    longest. Who began slowly and then waits for something else was not: a hang on a busy machine is a hang. Nor is a
    disk busy that moves nothing.
    """
    seconds = math.fsum(pace.seconds for pace in usages)
    if seconds < _LEAST_S:
        return None
    moved = _sum(usages, "disk_bytes_per_s") / seconds
    kept: dict[SlownessCause, list[CpuUsage]] = {"limit": [], "cores": [], "disk": []}
    for pace in usages:
        if reason := _kept_by(pace, moves=moved >= FLOORS["read"]):
            kept[reason].append(pace)
    times = {by: math.fsum(pace.seconds for pace in some) for by, some in kept.items()}
    if math.fsum(times.values()) < _MOSTLY * seconds:
        return None
    by = max(times, key=lambda by: times[by])
    if by == "limit":
        got, held = _sum(kept[by], "used_cores"), _sum(kept[by], "throttled_cores")
        limit_cores = kept[by][-1].limit_cores or 0.0
        return Slowness(cause=by, measured_s=seconds, used_share=got / (got + held), limit_cores=limit_cores)
    if by == "cores":
        got = math.fsum(min(pace.used_cores, pace.wanted_cores) * pace.seconds for pace in kept[by])
        others = _sum(usages, "others_cores") / seconds
        used_share = got / _sum(kept[by], "wanted_cores")
        return Slowness(cause=by, measured_s=seconds, used_share=used_share, other_processes_cores=others)
    waited = _sum(usages, "disk_wait_share") / seconds
    return Slowness(cause=by, measured_s=seconds, disk_wait_share=waited, disk_bytes_per_s=moved)


def _kept_by(pace: CpuUsage, *, moves: bool) -> SlownessCause | None:
    """Return what kept processes from their work at one look; `moves`: the disk gives them something over all looks."""
    if pace.limit_cores is not None and pace.throttled_share_of_wanted > 1 - _STARVED:
        return "limit"
    if pace.wanted_cores > WAITS_CORES and pace.used_share_of_wanted < _STARVED:
        return "cores"
    return "disk" if moves and pace.disk_wait_share > _DISK else None


def _sum(paces: Sequence[CpuUsage], field: str) -> float:
    """Return a rate of all looks summed over their time."""
    return math.fsum(getattr(pace, field) * pace.seconds for pace in paces)


_MOST = 4096
_SEEN_S, _LEAST_SEEN_S, _DISK_SEEN_S = 5.0, 1.0, 30.0
"""Over so long a start must have been seen to get on; a quarter of its limit where that is shorter.

A hang that follows is found so much later at most. Of one that sleeps until a disk answers it is the last: a slow one
is asked for megabytes at once, which count when they are there.
"""
_LOADS = ("read", "write", "memory")
_COMPUTES = 2.0
"""How many times its limit a start may take that only computes: a server that polls looks like one that compiles."""


class StarvationScaledClock:
    """Time as the processes of a run have it: it goes at `min_rate` (0-1] of real time at least."""

    def __init__(self, now_s: float) -> None:
        self.min_rate = 1.0
        self._last = (now_s, now_s, 1.0)  # own time, real time, rate: in one, for threads of services read it
        self._paces: deque[tuple[float, CpuUsage]] = deque(maxlen=_MOST)

    def get_scaled_time_s(self, now_real_s: float) -> float:
        """Return the time at `now_real_s`, a clock that only goes on; since the last look it goes as before."""
        own_s, at_s, rate = self._last
        return own_s + (now_real_s - at_s) * rate

    def add_usage(self, usage: CpuUsage, now_real_s: float) -> None:
        """Go on with the pace of the processes that was measured up to `now_real_s`."""
        self._last = (self.get_scaled_time_s(now_real_s), now_real_s, max(self.min_rate, usage.used_share_of_wanted))
        self._paces.append((now_real_s, usage))

    def find_slowness_since(self, since_real_time_s: float) -> Slowness | None:
        """Return what kept the processes from their work for most of the time since then; None: nothing."""
        return find_slowness([pace for at, pace in self._paces if at > since_real_time_s])


class ProgressExtendedStartupLimit:
    """How long a service may take to start: `limit_s` by the clock of its pace, and longer while it gets on.

    What reads, writes or fills memory may take `stretch` times its limit, by the clock on the wall; what only computes
    twice its limit.
    """

    def __init__(self, limit_s: float, stretch: float, own_s: float, real_s: float) -> None:
        self._limit_s, self._stretch = limit_s, stretch
        self._own_s, self._real_s = own_s, real_s
        self._recent: deque[tuple[float, ActivityRates]] = deque()
        self._waits_disk = False

    def add_activity_rates(self, rates: ActivityRates, now_real_s: float, *, is_waiting_for_disk: bool = False) -> None:
        """Take what the service's processes did up to then, and whether one of them sleeps until a disk answers."""
        self._waits_disk = is_waiting_for_disk
        self._recent.append((now_real_s, rates))
        while len(self._recent) > 1 and now_real_s - self._recent[0][0] >= _DISK_SEEN_S:
            self._recent.popleft()

    def get_wall_elapsed_s(self, now_real_s: float) -> float:
        return now_real_s - self._real_s

    def is_over_unextended_limit(self, now_scaled_s: float) -> bool:
        return now_scaled_s - self._own_s > self._limit_s

    def must_stop(self, now_scaled_s: float, now_real_s: float) -> bool:
        if not self.is_over_unextended_limit(now_scaled_s):
            return False
        times = self.get_wall_elapsed_s(now_real_s) / self._limit_s
        if times > self._stretch:
            return True
        seen_s = _DISK_SEEN_S if self._waits_disk else min(_SEEN_S, max(_LEAST_SEEN_S, self._limit_s / 4))
        since_s = now_real_s - seen_s
        return not (self._gets_on(since_s, *_LOADS) or (self._gets_on(since_s, "cpu") and times <= _COMPUTES))

    def _gets_on(self, since_s: float, *signs: str) -> bool:
        recent = [rates for at, rates in self._recent if at > since_s]
        seconds = sum(rates.seconds for rates in recent)
        return bool(recent) and any(
            sum(getattr(rates, sign) * rates.seconds for rates in recent) >= FLOORS[sign] * seconds for sign in signs
        )
