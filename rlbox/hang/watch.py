"""Find out while a stage runs whether it hangs, in which phase, and what it waits for."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from rlbox.diagnose.cause import Cause
from rlbox.hang.context import EventRecorder, LineBuffer, LogSource, WatchContext, get_hang_report_path, make_hang_cause
from rlbox.hang.detector import HangDetector, Stall
from rlbox.hang.evidence import collect_hang_evidence
from rlbox.hang.phases import load_phases, merge_phases
from rlbox.hang.ranks import AFTER_PAUSE_S, LIMIT_S, NOTICE_S, RankMonitor
from rlbox.hang.wait_probe import probe_process_sleep_remaining_s
from rlbox.hang.waits import describe_prime_suspect_wait
from rlbox.job.names import STAGE_LOG
from rlbox.job.phase import PhasePlan, plan_phases
from rlbox.logs.lines import LineBlock
from rlbox.system.counters import ActivityRates, ActivitySample, compute_rates, probe_activity

_LONGEST_LOOK_S = 2.0
"""What one look counts at most: a supervisor that was stopped, or a machine that slept, has seen nothing meanwhile."""

ActivityProbe = Callable[[Iterable[int]], ActivitySample]

_MEMBERS_S = 5.0


class _ActivityMonitor:
    """Counts the processes among `members()` but those whose names begin like one of `background`."""

    def __init__(
        self,
        members: Callable[[], Mapping[int, str]],
        background: tuple[str, ...],
        probe: ActivityProbe = probe_activity,
    ) -> None:
        self._members, self._background, self._probe = members, background, probe
        self._pids: tuple[int, ...] = ()
        self._listed_s = -math.inf
        self._before: ActivitySample | None = None
        self.last_probe_s = -math.inf
        """When they were last looked at, by the caller's clock; minus infinity before the first time."""

    def measure_rates(self, now_s: float) -> ActivityRates | None:
        """Return what they did since the last time, by the second of the probe's clock; None the first time."""
        self.last_probe_s = now_s
        before, self._before = self._before, self._activity(now_s)
        return compute_rates(before, self._before) if before else None

    def _activity(self, now_s: float) -> ActivitySample:
        if now_s - self._listed_s >= _MEMBERS_S:  # who is a member costs more than what it does
            self._pids = tuple(self._members())
            self._listed_s = now_s
        found = self._probe(self._pids)
        kept = tuple(process for process in found.processes if not process.name.startswith(self._background))
        return dataclasses.replace(found, processes=kept)


class HangMonitor:
    """Watches one stage from its first `check` on; `feed_log` is given every block of its logs.

    What was heard and what was measured goes to the judge; what the judge says is told.
    """

    def __init__(
        self,
        watched: WatchContext,
        *,
        clock: Callable[[], float] = time.monotonic,
        probe: ActivityProbe = probe_activity,
    ) -> None:
        stage, shipped = watched.stage, load_phases()
        phases = merge_phases(
            stage.phases,
            plan_phases(shipped.phases, str),
            stage.silence_s,
            override_shipped_silence=stage.silence_stated,
        )
        self._watched, self._background, self._clock = watched, shipped.background, clock
        self._heard = LineBuffer()
        self._measured = _ActivityMonitor(watched.list_process_names, shipped.background, probe)
        self._judge = HangDetector(phases, stage.silence_s, stage.steps, 0.0)
        self._ranks = RankMonitor(watched.list_process_names, shipped.background, probe) if stage.steps else None
        self._told = EventRecorder(watched)
        self._now_s = 0.0
        self._looked_s: float | None = None
        self._paused_until_s = -math.inf
        self._began_unix = time.time()

    def feed_log(self, log: str, texts: LineBlock) -> None:
        """Take lines of a log; only the stage's own says how far the stage is."""
        if log != STAGE_LOG:
            return
        if texts:
            self._heard.add(texts.joined)
            self._listen()
        if texts.overwritten_states:
            self._grew(texts.overwritten_states[-1][1].decode("utf-8", "replace"))

    def check(self, logs: LogSource) -> Cause | None:
        """Return why the stage must be stopped, its evidence being written by then; None while it is well."""
        self._tick()
        self._listen()
        if (bar := self._heard.read_changed_progress_bar(logs, self._now_s)) is not None:
            self._grew(bar)
        self._measure()
        self._told.record_phase_if_changed(self._judge.phase, self._now_s)
        waiting = self._waiting_ranks()
        stall = (
            waiting
            if waiting and waiting.silent_s >= LIMIT_S
            else self._unless_paused(self._judge.find_hang(self._now_s))
        )
        if stall:
            self._told.record_stall("hang", stall)
            return make_hang_cause(self._watched.stage, stall, self._collect(stall))
        self._told.record_possible_stall_start(
            waiting or self._unless_paused(self._judge.find_possible_step_stall(self._now_s))
        )
        return None

    def collect_timeout_evidence(self, cause: Cause, limit_s: float, service_phase_name: str | None = None) -> Cause:
        """Take down what a stage was doing that ran longer than it may, or a service, as `start of vllm` names it."""
        self._listen(at_once=True)
        phase, silent_s = self._judge.phase, self._judge.get_inactivity_s(self._now_s)
        if service_phase_name:
            phase = PhasePlan(name=service_phase_name, silence_s=limit_s)
        rule: Literal["ready", "total"] = "ready" if service_phase_name else "total"
        stall = Stall(rule=rule, phase=phase, silent_s=silent_s, limit_s=limit_s)
        waits, report = self._collect(stall), get_hang_report_path(self._watched.stage)
        return dataclasses.replace(cause, phase=phase.name, waits=waits, report=report)

    def _tick(self) -> None:
        now = self._clock()
        if self._looked_s is not None:
            self._now_s += min(max(now - self._looked_s, 0.0), _LONGEST_LOOK_S)
        else:
            self._judge.start(self._now_s)
        self._looked_s = now

    def _listen(self, *, at_once: bool = False) -> None:
        block = self._heard.pop_complete_lines(self._now_s, skip_rate_limit=at_once)
        if block is not None:
            self._told.keep_last_phase_change(self._judge.feed_lines(block, self._now_s))

    def _grew(self, unfinished: str) -> None:
        if line := self._judge.feed_partial_line(unfinished, self._now_s):
            self._told.keep_last_phase_change([line])

    def _measure(self) -> None:
        since_s = self._measured.last_probe_s
        if self._now_s - since_s < self._judge.choose_probe_interval_s(self._now_s):
            return
        if rates := self._measured.measure_rates(self._now_s):
            self._judge.feed_rates(rates, self._now_s, log_advanced=self._judge.last_progress_s > since_s)

    def _waiting_ranks(self) -> Stall | None:
        if self._ranks is None:
            return None
        deadlock, lasted_s = self._ranks.probe_deadlock(self._now_s, self._judge.last_output_s)
        if deadlock is None or lasted_s < NOTICE_S:
            return None
        return Stall(
            rule="ranks",
            phase=self._judge.phase,
            silent_s=lasted_s,
            limit_s=LIMIT_S,
            step_s=self._judge.usual_step_s,
            deadlock=deadlock,
        )

    def _unless_paused(self, stall: Stall | None) -> Stall | None:
        """Return a stall, but None for steps that do not come because a process sleeps and will go on by itself."""
        if not stall or stall.rule != "steps":
            return stall
        if self._now_s >= self._paused_until_s and (
            pause_s := probe_process_sleep_remaining_s(self._watched.list_process_names(), stall.silent_s)
        ):
            self._paused_until_s = self._now_s + pause_s + AFTER_PAUSE_S
        return None if self._now_s < self._paused_until_s else stall

    def _collect(self, stall: Stall) -> str:
        """Write the evidence; return what the first process, the odd one out, waits for."""
        self._told.record_phase_if_changed(self._judge.phase, self._now_s, skip_rate_limit=True)
        recent = self._judge.list_recent_rates(self._now_s)
        try:
            waits = collect_hang_evidence(
                self._watched,
                stall,
                recent,
                ignored_name_prefixes=self._background,
                stage_start_unix_s=self._began_unix,
            )
        except OSError as error:
            self._watched.record_event("evidence-failed", why=str(error))
            return ""
        return describe_prime_suspect_wait(waits)
