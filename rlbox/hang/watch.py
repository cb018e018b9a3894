"""Find out while a stage runs whether it hangs, in which phase, and what it waits for."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Literal

from rlbox.diagnose.cause import Cause
from rlbox.hang.detector import (
    LOOKED_AT_BYTES,
    HangDetector,
    HangOrTimeout,
    PhaseStartOrEnd,
    load_shipped_phases,
    merge_phases,
    select_last_whole_lines,
)
from rlbox.hang.evidence import WatchContext, get_hang_report_path, make_hang_cause, write_hang_evidence
from rlbox.hang.ranks import AFTER_PAUSE_S, LIMIT_S, ActivityProbe, RankMonitor
from rlbox.hang.waits import describe_prime_suspect_wait_or_empty, probe_remaining_tolerated_sleep_s_or_0
from rlbox.job.job import Phase
from rlbox.job.names import STAGE_LOG
from rlbox.logs.lines import LineBlock
from rlbox.logs.pump import LineDispatcher
from rlbox.system.counters import ActivitySample, compute_cpu_usage, compute_rates, probe_machine_and_process_activity
from rlbox.system.limits import count_usable_cores

_LONGEST_LOOK_S = 2.0
"""What one look counts at most: a supervisor that was stopped, or a machine that slept, has seen nothing meanwhile."""

_SLOWEST_PACE = 0.1
"""Processes that get a part of the cores that they could use have that much more time, ten times at most."""


_MEMBERS_S = 5.0
_RECORD_S, _QUOTED = 1.0, 200
"""Phases are recorded once a second at most: markers may come with every step."""
_BAR_S = 0.2
_BATCH_S = 0.4
"""How long lines may wait when there were some a moment ago: a log that never rests is heard twice a second."""


class HangMonitor:
    def __init__(
        self,
        watched: WatchContext,
        *,
        clock: Callable[[], float] = time.monotonic,
        probe: ActivityProbe = probe_machine_and_process_activity,
    ) -> None:
        stage, shipped = watched.stage, load_shipped_phases()
        phases = merge_phases(
            stage.phases, shipped.phases, stage.silence_s, override_shipped_silence=stage.silence_stated
        )
        self._watched, self._background, self._clock = watched, shipped.background, clock
        self._probe, self._cores = probe, count_usable_cores()
        self._detector = HangDetector(phases, stage.silence_s, stage.steps, 0.0)
        self._ranks = RankMonitor(watched.list_process_names, shipped.background, probe) if stage.steps else None
        self._now_s = 0.0
        self._pace = 1.0
        self._pids: tuple[int, ...] = ()
        self._before: ActivitySample | None = None
        self._listed_s = self._probed_s = self._probed_real_s = -math.inf
        self._looked_s: float | None = None
        self._pending_lines: bytes | None = None
        self._bar_bytes: int | None = None
        self._phase_change: PhaseStartOrEnd | None = None
        self._phase_name = ""
        self._fed_s = self._bar_s = self._phase_recorded_s = self._paused_until_s = -math.inf
        self._began_unix = time.time()

    def feed_if_stage_log(self, log: str, texts: LineBlock) -> None:
        if log != STAGE_LOG:
            return
        if texts:
            lines = texts.joined if self._pending_lines is None else b"%s\n%s" % (self._pending_lines, texts.joined)
            self._pending_lines, self._bar_bytes = select_last_whole_lines(lines, LOOKED_AT_BYTES), None
            self._feed_pending_lines()
        if texts.overwritten_states:
            self._feed_partial_line(texts.overwritten_states[-1][1].decode("utf-8", "replace"))

    def find_hang_and_write_evidence(self, logs: LineDispatcher) -> Cause | None:
        """Return why the stage must be stopped, its evidence being written by then; None while it is well."""
        self._tick()
        self._feed_pending_lines()
        self._feed_progress_bar(logs)
        self._measure()
        self._record_phase_if_changed()
        stall = self._find_waiting_ranks() or self._unless_paused(self._detector.find_hang(self._now_s))
        if stall is None:
            return None
        self._watched.record_event(
            "hang",
            phase=stall.phase.name,
            rule=stall.rule,
            silent_s=round(stall.silent_s, 1),
            limit_s=round(stall.limit_s, 1),
            step_s=round(stall.step_s, 3),
        )
        return make_hang_cause(self._watched.stage, stall, self._collect(stall))

    def write_timeout_evidence(self, cause: Cause, limit_s: float, service_phase_name: str | None = None) -> Cause:
        """Take down what a stage was doing that ran longer than it may, or a service, as `start of vllm` names it."""
        self._feed_pending_lines(skip_rate_limit=True)
        phase, silent_s = self._detector.phase, self._detector.get_inactivity_s(self._now_s)
        if service_phase_name:
            phase = Phase.model_construct(name=service_phase_name, begins=(), silence_s=limit_s)
        rule: Literal["ready", "total"] = "ready" if service_phase_name else "total"
        stall = HangOrTimeout(rule=rule, phase=phase, silent_s=silent_s, limit_s=limit_s)
        waits, report = self._collect(stall), get_hang_report_path(self._watched.stage)
        return dataclasses.replace(cause, phase=phase.name, waits=waits, report=report)

    def _tick(self) -> None:
        now = self._clock()
        if self._looked_s is not None:
            self._now_s += self._pace * min(max(now - self._looked_s, 0.0), _LONGEST_LOOK_S)
        self._looked_s = now

    def _feed_pending_lines(self, *, skip_rate_limit: bool = False) -> None:
        if self._pending_lines is None or (self._now_s - self._fed_s < _BATCH_S and not skip_rate_limit):
            return
        if changes := self._detector.feed_lines(self._pending_lines, self._now_s):
            self._phase_change = changes[-1]
        self._pending_lines, self._fed_s = None, self._now_s

    def _feed_progress_bar(self, logs: LineDispatcher) -> None:
        if self._now_s - self._bar_s < _BAR_S:
            return
        before, self._bar_bytes = self._bar_bytes, logs.bytes_read_per_log.get(STAGE_LOG, 0)
        self._bar_s = self._now_s
        # None: the first look, or the first since lines came; what stands behind them has not been fed either
        if self._bar_bytes != before and (text := logs.get_partial_line(STAGE_LOG)):
            self._feed_partial_line(text)

    def _feed_partial_line(self, text: str) -> None:
        self._phase_change = (
            self._detector.feed_partial_line_and_get_phase_start(text, self._now_s) or self._phase_change
        )

    def _record_phase_if_changed(self, *, skip_rate_limit: bool = False) -> None:
        change, phase = self._phase_change, self._detector.phase
        if change is None or (self._now_s - self._phase_recorded_s < _RECORD_S and not skip_rate_limit):
            return
        self._phase_change = None
        if phase.name != self._phase_name:
            self._phase_name, self._phase_recorded_s = phase.name, self._now_s
            self._watched.record_phase(phase.name)
            self._watched.record_event(
                "phase", phase=phase.name, log=STAGE_LOG, line=change.text[:_QUOTED], limit_s=phase.silence_s
            )

    def _measure(self) -> None:
        now_s, real_s, since_s = self._now_s, self._clock(), self._probed_s
        if real_s - self._probed_real_s < self._detector.probe_interval_s:
            return
        self._probed_s, self._probed_real_s = now_s, real_s
        if now_s - self._listed_s >= _MEMBERS_S:  # who is a member costs more than what it does
            self._pids, self._listed_s = tuple(self._watched.list_process_names()), now_s
        sample = self._probe(self._pids)
        kept = tuple(process for process in sample.processes if not process.name.startswith(self._background))
        before, self._before = self._before, dataclasses.replace(sample, processes=kept)
        if before is None:
            return
        usage = compute_cpu_usage(before, self._before, self._cores)
        self._pace = max(_SLOWEST_PACE, usage.used_share_of_wanted_or_1)
        log_advanced = self._detector.last_progress_s > since_s
        self._detector.feed_rates(compute_rates(before, self._before), now_s, log_advanced=log_advanced)

    def _find_waiting_ranks(self) -> HangOrTimeout | None:
        if self._ranks is None:
            return None
        deadlock, lasted_s = self._ranks.probe_deadlock_if_due(self._now_s, self._detector.last_output_s)
        if deadlock is None or lasted_s < LIMIT_S:
            return None
        return HangOrTimeout(
            rule="ranks",
            phase=self._detector.phase,
            silent_s=lasted_s,
            limit_s=LIMIT_S,
            step_s=self._detector.usual_step_s_or_0,
            deadlock=deadlock,
        )

    def _unless_paused(self, stall: HangOrTimeout | None) -> HangOrTimeout | None:
        """Return a stall, but None for steps that do not come because a process sleeps and will go on by itself."""
        if not stall or stall.rule != "steps":
            return stall
        if self._now_s >= self._paused_until_s and (
            pause_s := probe_remaining_tolerated_sleep_s_or_0(self._watched.list_process_names(), stall.silent_s)
        ):
            self._paused_until_s = self._now_s + pause_s + AFTER_PAUSE_S
        return None if self._now_s < self._paused_until_s else stall

    def _collect(self, stall: HangOrTimeout) -> str:
        """Write the evidence; return what the first process, the odd one out, waits for."""
        self._record_phase_if_changed(skip_rate_limit=True)
        try:
            waits = write_hang_evidence(
                self._watched,
                stall,
                [(self._now_s - at, rates) for at, rates in self._detector.recent_rates],
                ignored_name_prefixes=self._background,
                stage_start_unix_s=self._began_unix,
            )
        except OSError as error:
            self._watched.record_event("evidence-failed", why=str(error))
            return ""
        return describe_prime_suspect_wait_or_empty(waits)
