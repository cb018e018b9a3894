"""Look at what a run's processes get of this machine: by it limits are counted, and slowness is called by its name."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterable

from rlbox.causes.cause import BY_TIME, Cause
from rlbox.hang.act.watch import Probe
from rlbox.hang.pace import PaceClock, Starved
from rlbox.machine.act.cgroup import usable_cores
from rlbox.machine.act.counters import probe_activity, probe_process_activity
from rlbox.machine.act.process_table import probe_processes
from rlbox.machine.act.processes import RunProcesses
from rlbox.machine.counters import Activity, pace_between

_EVERY_S = 1.0
_CPU_SHARE = 0.002
"""Share of a core that looking may take."""
_MEMBERS_S = 5.0
_WINDOW_S = 300.0
_WHO_S = 0.5
_MOST_NAMED = 3
_LEAST_CORES = 0.1


def _probe(pids: Iterable[int]) -> Activity:
    return probe_activity(pids, gpus=False)


class PaceWatch:
    """Looks once a second at most; `now_s` is the clock for the limits of what the run started."""

    def __init__(
        self, processes: RunProcesses, *, probe: Probe = _probe, real: Callable[[], float] = time.monotonic
    ) -> None:
        self._processes, self._probe, self._real = processes, probe, real
        self._clock = PaceClock(real())
        self._cores = usable_cores()
        self._before: Activity | None = None
        self._due_s = self._listed_s = -math.inf
        self._pids: tuple[int, ...] = ()
        self._begun_s = real()

    def begin(self, stretch: float) -> None:
        """Begin with a stage whose limits may last `stretch` times as long, and no longer."""
        self._begun_s, self._clock.slowest = self._real(), 1 / stretch

    def now_s(self) -> float:
        """Return the time as the run's processes have it."""
        return self._clock.now_s(self._real())

    def look(self) -> None:
        """Look when the last time was a while ago."""
        real_s = self._real()
        if real_s < self._due_s:
            return
        spent = time.thread_time()
        if real_s - self._listed_s >= _MEMBERS_S:  # who is a member costs more than what it does
            self._pids, self._listed_s = tuple(self._processes.tree()), real_s
        before, self._before = self._before, self._probe(self._pids)
        if before:
            self._clock.take(pace_between(before, self._before, self._cores), real_s)
        self._due_s = real_s + max(_EVERY_S, (time.thread_time() - spent) / _CPU_SHARE)

    def explain(self, cause: Cause) -> Cause:
        """Return `cause`, or, where something took too long because others had the machine, that it is busy."""
        real_s = self._real()
        if cause.kind not in BY_TIME:
            return cause
        starved = self._clock.starved(max(self._begun_s, real_s - _WINDOW_S))
        if starved is None:
            return cause
        return dataclasses.replace(
            cause,
            kind="busy",
            what=f"{starved.text(self._cores, self._others(starved))}; then {cause.what}",
            next_step="end what else works on this machine, or run on another; " + cause.next_step,
        )

    def _others(self, starved: Starved) -> list[str]:
        """Return the processes of others that have most of this machine now, the greediest first."""
        own = self._processes.tree() | {os.getpid()}
        pids = [pid for pid in probe_processes() if pid not in own] if starved.others > _LEAST_CORES else []
        before = {pid: probe_process_activity(pid) for pid in pids}
        begun = time.monotonic()
        time.sleep(_WHO_S)
        found = []
        for pid, was in before.items():
            now = probe_process_activity(pid) if was else None
            if was and now and now.key == was.key:
                found.append(((now.cpu_s - was.cpu_s) / (time.monotonic() - begun), f"{now.name} (pid {pid})"))
        greedy = sorted((row for row in found if row[0] >= _LEAST_CORES), reverse=True)
        return [f"{name} {cores:.1f}" for cores, name in greedy[:_MOST_NAMED]]
