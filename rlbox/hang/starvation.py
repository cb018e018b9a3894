"""What a run's processes get of this machine: limits are counted by it, and slowness gets its name.

Processes are slow though nothing is wrong with them by the limit of their container, by others on the machine, or by a
disk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from rlbox.amounts import decimal_size_text, duration_text
from rlbox.diagnose.cause import TIMEOUT_KINDS, Cause, CauseKind
from rlbox.job.phase import FLOORS
from rlbox.system.counters import (
    WAITS_CORES,
    ActivityRates,
    ActivitySample,
    CpuUsage,
    compute_cpu_usage,
    compute_rates,
    probe_activity,
)
from rlbox.system.limits import count_usable_cores
from rlbox.system.run_processes import ChildProcess, RunProcesses

SlownessCause = Literal["limit", "cores", "disk"]

_LEAST_S, _MOSTLY = 5.0, 2 / 3
_STARVED = 0.6
"""With less than this share of what they could use, processes are slow because something keeps them from it.

Half of a core is what they get beside one other group of processes (autogroup), so the share must lie above it.
"""
_DISK = 0.5
"""Who waits for a disk longer than this, and is given bytes by it all the while, is slow because of it."""
_REMEDIES = {
    "limit": "give the container more cores: run.cpus of the target, or the limit of what was rented",
    "cores": "end what else works on this machine, or run on another",
    "disk": "end what else uses that disk, or copy what is read to a faster one",
}


class Slowness(NamedTuple):
    cause: SlownessCause
    description: str


def find_slowness(usages: Sequence[CpuUsage], machine_cores: float) -> Slowness | None:
    """Return what kept processes from their work for most of the time of these looks; None: nothing did.

    Where now one thing did and now another (a limit, on a machine that is busy, too), it is the one that did so
    longest. Who began slowly and then waits for something else was not: a hang on a busy machine is a hang.
    """
    seconds = math.fsum(usage.seconds for usage in usages)
    if seconds < _LEAST_S:
        return None
    moved = _sum(usages, "disk_bytes_per_s") / seconds
    kept: dict[SlownessCause, list[CpuUsage]] = {"limit": [], "cores": [], "disk": []}
    for usage in usages:
        if reason := _find_cause(usage, moves=moved >= FLOORS["read"]):
            kept[reason].append(usage)
    times = {cause: math.fsum(usage.seconds for usage in some) for cause, some in kept.items()}
    if math.fsum(times.values()) < _MOSTLY * seconds:
        return None
    cause = max(times, key=lambda cause: times[cause])
    own, span = kept[cause], duration_text(seconds)
    if cause == "limit":
        got, held = _sum(own, "used_cores"), _sum(own, "throttled_cores")
        text = (
            f"the container's own CPU limit ({own[-1].limit_cores or 0.0:g} cores: --cpus, or a pod's) held the "
            f"stage's processes back {100 * held / (got + held):.0f} % of the time, over {span}"
        )
    elif cause == "cores":
        got = math.fsum(min(usage.used_cores, usage.wanted_cores) * usage.seconds for usage in own)
        text = (
            f"this machine is busy: over {span} the stage's processes got {100 * got / _sum(own, 'wanted_cores'):.0f} "
            f"% of the time that they could have used of a core; others had "
            f"{_sum(usages, 'others_cores') / seconds:.1f} of {machine_cores:g} cores"
        )
    else:
        text = (
            f"this machine's disk is busy or slow: over {span} the stage's processes waited for it "
            f"{100 * _sum(usages, 'disk_wait_share') / seconds:.0f} % of the time, and it moved "
            f"{decimal_size_text(moved)}/s for them"
        )
    return Slowness(cause, text)


def _find_cause(usage: CpuUsage, *, moves: bool) -> SlownessCause | None:
    """Return what kept processes from their work at one look; `moves`: the disk gives them something over all looks."""
    if usage.limit_cores is not None and usage.throttled_share_of_wanted > 1 - _STARVED:
        return "limit"
    if usage.wanted_cores > WAITS_CORES and usage.used_share_of_wanted < _STARVED:
        return "cores"
    return "disk" if moves and usage.disk_wait_share > _DISK else None


def _sum(usages: Sequence[CpuUsage], field: str) -> float:
    return math.fsum(getattr(usage, field) * usage.seconds for usage in usages)


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
        self._usages: deque[tuple[float, CpuUsage]] = deque(maxlen=_MOST)

    def get_scaled_time_s(self, now_real_s: float) -> float:
        """Return the time at `now_real_s`, a clock that only goes on; since the last look it goes as before."""
        own_s, at_s, rate = self._last
        return own_s + (now_real_s - at_s) * rate

    def add_usage(self, usage: CpuUsage, now_real_s: float) -> None:
        self._last = (self.get_scaled_time_s(now_real_s), now_real_s, max(self.min_rate, usage.used_share_of_wanted))
        self._usages.append((now_real_s, usage))

    def find_slowness_since(self, since_real_time_s: float, machine_cores: float) -> Slowness | None:
        return find_slowness([usage for at, usage in self._usages if at > since_real_time_s], machine_cores)


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


_EVERY_S = 1.0
_CPU_SHARE = 0.002
"""Share of a core that looking may take."""
_MEMBERS_S = 5.0
_WINDOW_S = 300.0


class StarvationMonitor:
    """Looks once a second at most; `scaled_time_s` is the clock for the limits of what the run started."""

    def __init__(self, processes: RunProcesses) -> None:
        self._processes = processes
        self._begun_s = time.monotonic()
        self._clock = StarvationScaledClock(self._begun_s)
        self._cores = count_usable_cores()
        self._stretch = 1.0
        self._before: ActivitySample | None = None
        self._due_s = self._listed_s = self._looked_s = -math.inf
        self._pids: tuple[int, ...] = ()
        self._startup: tuple[ChildProcess, ProgressExtendedStartupLimit] | None = None
        self._startup_pids: set[int] = set()

    def begin_stage(self, max_stretch_factor: float) -> None:
        self._begun_s, self._clock.min_rate, self._stretch = (
            time.monotonic(),
            1 / max_stretch_factor,
            max_stretch_factor,
        )

    def scaled_time_s(self) -> float:
        return self._clock.get_scaled_time_s(time.monotonic())

    @contextlib.contextmanager
    def track_startup(self, child: ChildProcess, limit_s: float) -> Iterator[ProgressExtendedStartupLimit]:
        limit = ProgressExtendedStartupLimit(limit_s, self._stretch, self.scaled_time_s(), time.monotonic())
        self._startup, self._listed_s = (child, limit), -math.inf
        self.sample(now=True)
        try:
            yield limit
        finally:
            self._startup = None

    def is_startup_over(self, limit: ProgressExtendedStartupLimit) -> bool:
        if limit.is_over_unextended_limit(self.scaled_time_s()):
            self.sample(now=True)
        return limit.must_stop(self.scaled_time_s(), time.monotonic())

    def sample(self, *, now: bool = False) -> None:
        """Look when the last time was a while ago; `now`: when it was a second ago, whatever it costs."""
        real_s = time.monotonic()
        if real_s < (self._looked_s + _EVERY_S if now else self._due_s):
            return
        self._looked_s = real_s
        spent = time.thread_time()
        if real_s - self._listed_s >= _MEMBERS_S:  # who is a member costs more than what it does
            self._pids, self._listed_s = tuple(self._processes.list_tree_pids()), real_s
            if self._startup:
                self._startup_pids = self._processes.list_child_tree_pids(self._startup[0])
        before, self._before = self._before, probe_activity(self._pids, gpus=False)
        if before:
            self._clock.add_usage(compute_cpu_usage(before, self._before, self._cores), real_s)
            if self._startup:
                self._measure_startup(self._startup[1], before, self._before, real_s)
        self._due_s = real_s + max(_EVERY_S, (time.thread_time() - spent) / _CPU_SHARE)

    def refine_cause(self, cause: Cause) -> Cause:
        """Return `cause`, or, where something took too long because of the machine or a limit of it, that."""
        if cause.kind not in TIMEOUT_KINDS:
            return cause
        self.sample(now=True)
        slow = self._clock.find_slowness_since(max(self._begun_s, time.monotonic() - _WINDOW_S), self._cores)
        if slow is None:
            return cause
        kind: CauseKind = "throttled" if slow.cause == "limit" else "busy"
        return dataclasses.replace(
            cause,
            kind=kind,
            what=f"{slow.description}; then {cause.what}",
            next_step="; ".join(step for step in (_REMEDIES[slow.cause], cause.next_step) if step),
        )

    def _measure_startup(
        self, limit: ProgressExtendedStartupLimit, before: ActivitySample, after: ActivitySample, real_s: float
    ) -> None:
        own = [
            dataclasses.replace(each, processes=tuple(p for p in each.processes if p.pid in self._startup_pids))
            for each in (before, after)
        ]
        waits_disk = any(process.waits_for_disk for process in own[1].processes)
        limit.add_activity_rates(compute_rates(*own), real_s, is_waiting_for_disk=waits_disk)
