"""Measure what a run's processes get of this machine: limits are counted by it, and slowness gets its name."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator

from rlbox.diagnose.cause import TIMEOUT_KINDS, Cause, CauseKind
from rlbox.hang.slowness import REMEDIES, ProgressExtendedStartupLimit, StarvationScaledClock
from rlbox.hang.watch import ActivityProbe
from rlbox.system.counters import (
    ActivitySample,
    ProcessUsage,
    compute_cpu_usage,
    compute_rates,
    probe_activity,
)
from rlbox.system.limits import count_usable_cores
from rlbox.system.run_processes import ChildProcess, RunProcesses

_EVERY_S = 1.0
_CPU_SHARE = 0.002
"""Share of a core that looking may take."""
_MEMBERS_S = 5.0
_WINDOW_S = 300.0


class StarvationMonitor:
    """Looks once a second at most; `scaled_time_s` is the clock for the limits of what the run started."""

    def __init__(
        self, processes: RunProcesses, *, probe: ActivityProbe | None = None, real: Callable[[], float] = time.monotonic
    ) -> None:
        self._processes, self._probe, self._real = processes, probe or _probe_without_gpus, real
        self._clock = StarvationScaledClock(real())
        self._cores = count_usable_cores()
        self._stretch = 1.0
        self._before: ActivitySample | None = None
        self._due_s = self._listed_s = self._looked_s = -math.inf
        self._pids: tuple[int, ...] = ()
        self._start: _ServiceStartup | None = None
        self._begun_s = real()

    def begin_stage(self, max_stretch_factor: float) -> None:
        """Begin with a stage whose limits may last `max_stretch_factor` times as long, and no longer."""
        self._begun_s, self._clock.min_rate, self._stretch = self._real(), 1 / max_stretch_factor, max_stretch_factor

    def scaled_time_s(self) -> float:
        return self._clock.get_scaled_time_s(self._real())

    def unscaled_monotonic_time_s(self) -> float:
        return self._real()

    @contextlib.contextmanager
    def track_startup(self, child: ChildProcess, limit_s: float) -> Iterator[_ServiceStartup]:
        """Watch whether a service that starts gets on, until the block ends."""
        clock = ProgressExtendedStartupLimit(limit_s, self._stretch, self.scaled_time_s(), self._real())
        self._start, self._listed_s = _ServiceStartup(self, clock, child), -math.inf
        self.sample(now=True)
        try:
            yield self._start
        finally:
            self._start = None

    def sample(self, *, now: bool = False) -> None:
        """Look when the last time was a while ago; `now`: when it was a second ago, whatever it costs."""
        real_s = self._real()
        if real_s < (self._looked_s + _EVERY_S if now else self._due_s):
            return
        self._looked_s = real_s
        spent = time.thread_time()
        if real_s - self._listed_s >= _MEMBERS_S:  # who is a member costs more than what it does
            self._pids, self._listed_s = tuple(self._processes.list_tree_pids()), real_s
            if self._start:
                self._start.pids = self._processes.list_child_tree_pids(self._start.child)
        before, self._before = self._before, self._probe(self._pids)
        if before:
            self._clock.add_usage(compute_cpu_usage(before, self._before, self._cores), real_s)
            if self._start:
                self._start.add_activity(before, self._before, real_s)
        self._due_s = real_s + max(_EVERY_S, (time.thread_time() - spent) / _CPU_SHARE)

    def refine_cause(self, cause: Cause) -> Cause:
        """Return `cause`, or, where something took too long because of the machine or a limit of it, that."""
        if cause.kind not in TIMEOUT_KINDS:
            return cause
        self.sample(now=True)
        slow = self._clock.find_slowness_since(max(self._begun_s, self._real() - _WINDOW_S))
        if slow is None:
            return cause
        kind: CauseKind = "throttled" if slow.cause == "limit" else "busy"
        return dataclasses.replace(
            cause,
            kind=kind,
            what=f"{slow.describe(self._cores)}; then {cause.what}",
            next_step="; ".join(step for step in (REMEDIES[slow.cause], cause.next_step) if step),
        )


class _ServiceStartup:
    """A service that starts: over limit once it may take no longer. `pids`: its processes, looked up now and then."""

    def __init__(self, watch: StarvationMonitor, clock: ProgressExtendedStartupLimit, child: ChildProcess) -> None:
        self.child = child
        self.pids: set[int] = {child.pid}
        self._watch, self._clock = watch, clock

    def add_activity(self, previous: ActivitySample, after: ActivitySample, now_real_s: float) -> None:
        own = [dataclasses.replace(look, processes=self._own(look.processes)) for look in (previous, after)]
        waits_disk = any(process.waits_for_disk for process in own[1].processes)
        self._clock.add_activity_rates(compute_rates(*own), now_real_s, is_waiting_for_disk=waits_disk)

    @property
    def is_over_limit(self) -> bool:
        """Whether it has taken longer than it may, as a look of this second shows."""
        if self._clock.is_over_unextended_limit(self._watch.scaled_time_s()):
            self._watch.sample(now=True)
        return self._clock.must_stop(self._watch.scaled_time_s(), self._watch.unscaled_monotonic_time_s())

    @property
    def elapsed_s(self) -> float:
        """How long it has taken by the clock on the wall, s."""
        return self._clock.get_wall_elapsed_s(self._watch.unscaled_monotonic_time_s())

    def _own(self, processes: Iterable[ProcessUsage]) -> tuple[ProcessUsage, ...]:
        return tuple(process for process in processes if process.pid in self.pids)


def _probe_without_gpus(pids: Iterable[int]) -> ActivitySample:
    return probe_activity(pids, gpus=False)
