"""Watch a running stage: its logs against its gate, its services, its limits."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from functools import partial
from pathlib import Path

from rlbox.diagnose.cause import describe_exit
from rlbox.diagnose.first_fatal import FatalPosition, FirstFatalFinder, read_run_signatures_or_empty
from rlbox.gate.gate import GateChecker
from rlbox.hang.watch import HangMonitor
from rlbox.i18n import _
from rlbox.job.names import STAGE_LOG
from rlbox.job.plan import StagePlan
from rlbox.logs.lines import LineBlock
from rlbox.logs.metric_files import MetricFilesReader
from rlbox.logs.patterns import find_candidate_line_indexes
from rlbox.logs.pump import LineDispatcher, MaskingLogPump
from rlbox.supervise import causes
from rlbox.supervise.ray_jobs import SubmittedRayJob
from rlbox.supervise.services import RunningService
from rlbox.supervise.stage_context import StageAborted, StageContext
from rlbox.system.run_processes import ChildProcess
from rlbox.system.tail import FileFollower

_LOOK_S = 0.05
"""How often the stage is looked at while its logs are still; new output is looked at when it comes."""

_BEHIND_S = 10.0
"""How much later a line may be looked at than it was written while the logs grow faster than they are read."""

_METRIC_FILES_S = 5.0
"""How often the run directory is searched for metrics files, if a rule needs them."""

_QUOTED = 500
_SETTLE_LINE_S = 0.3
TOLD_TO_STOP = (0, -15, -2, 143, 130)
"""Ends of a service that its client may have asked for on its own way out."""


class StageWatch:
    def __init__(self, context: StageContext, stage: StagePlan) -> None:
        self.gate = GateChecker(stage, context.plan.benign)
        self.services: list[RunningService] = []
        self.main: ChildProcess | SubmittedRayJob | None = None
        self.pump = MaskingLogPump(context.journal.masks)
        names = (*(service.name for service in stage.services), STAGE_LOG)
        self.hang = HangMonitor(context.create_hang_watch_context(stage))
        self.logs = LineDispatcher(
            self.pump, names, (self._judge, self._find_fatal, self.hang.feed_if_stage_log, self._hear)
        )
        self._context = context
        self._stage = stage
        self._recorded = -1
        self._begun = time.monotonic()
        catalogue = read_run_signatures_or_empty(context.run_dir)
        self._scanned = catalogue.line_prefilter_expressions
        self._finders = {
            name: FirstFatalFinder(partial(self.gate.is_harmless_line_so_far, name), catalogue) for name in names
        }
        self._metric_files = {path: FileFollower(Path(path), follow_links=True) for path in self.gate.metric_file_paths}
        for tail in self._metric_files.values():
            with contextlib.suppress(OSError):
                tail.skip_to_end()
        self._all_metric_files = MetricFilesReader(context.run_dir) if self.gate.reads_all_metric_files else None
        for _row in self._all_metric_files.read_new_rows() if self._all_metric_files else ():
            pass  # only rows of the stage count
        self._search_metric_files_at = 0.0
        self._command_begun: float | None = None
        self._told: dict[str, FatalPosition] = {}
        self._recorded_counts = Counter[str]()

    @property
    def first_fatals_by_log(self) -> dict[str, FatalPosition]:
        return {name: finder.first_fatal for name, finder in self._finders.items() if finder.first_fatal}

    def poll_and_raise_on_failure(self) -> None:
        self._context.sampler.append_sample_if_due_or_changed()
        self.logs.dispatch_next_blocks()
        self._read_metric_files()
        if time.monotonic() >= self._search_metric_files_at:
            self._search_metric_files_at = time.monotonic() + _METRIC_FILES_S
            self._read_all_metric_files()
        if self._command_begun is not None:
            behind_s = _BEHIND_S if self.logs.has_unread else 0.0
            self.gate.fail_late_rules(time.monotonic() - self._command_begun - behind_s)
        self.record_new_gate_events_and_fatals()
        self._record_gate_if_changed()
        self._context.raise_if_stopped_or_unrecordable()
        self.raise_on_log_write_error()
        self.record_and_raise_on_dead_service()
        if lost := self._context.nodes.find_lost_node_cause(self._stage):
            raise StageAborted(lost)
        self.record_gate_and_raise_on_broken_rule()
        if time.monotonic() - self._begun > self._stage.total_s:
            self.gate.set_broken(self.gate.outcomes.total, "passed")
            raise StageAborted(
                self.hang.write_timeout_evidence(causes.explain_exceeded_total_time(self._stage), self._stage.total_s)
            )
        if not self.logs.has_unread:
            self.pump.wait_for_growth(_LOOK_S)

    def forget_fatals_so_far(self, log: str) -> None:
        """Take nothing for fatal that was written so far: who wrote it lives with it."""
        self._finders[log].reset()
        self._told.pop(log, None)

    def record_new_gate_events_and_fatals(self) -> None:
        event, stage = self._context.journal.record_event, self._stage.name
        events = self.gate.events
        for name, lines in (("forbidden", events.forbidden), ("noted", events.warnings)):
            for rule, line in ((each.rule, each.line) for each in lines[self._recorded_counts[name] :]):
                event(stage, name, log=rule.log, number=line.number, line=line.text[:_QUOTED])
            self._recorded_counts[name] = len(lines)
        for violation in events.violations[self._recorded_counts["broken"] :]:
            event(stage, "broken", rule=violation.rule.describe(), problem=violation.problem)
        self._recorded_counts["broken"] = len(events.violations)
        for name, spot in self.first_fatals_by_log.items():
            if spot != self._told.get(name):
                self._told[name] = spot
                event(stage, "fatal", log=name, number=spot.number, line=spot.text[:_QUOTED])

    def raise_on_log_write_error(self) -> None:
        if self.pump.write_error:
            raise StageAborted(self._context.explain_disk_error(self.pump.write_error))

    def write_evidence_and_raise_on_hang(self) -> None:
        cause = self.hang.find_hang_and_write_evidence(self.logs)
        if cause:
            self.gate.set_broken(self.gate.outcomes.silence, self.gate.last_nonblank_line(STAGE_LOG))
            raise StageAborted(cause)

    def record_and_raise_on_dead_service(self, tolerated_exit_codes: tuple[int, ...] = ()) -> None:
        for service in self.services:
            code = service.child.poll()
            if code is None or code in tolerated_exit_codes:
                continue
            self.logs.copy_and_dispatch_everything_written()
            self.record_gate_and_raise_on_broken_rule(service.plan.name)
            self._refuse(service, describe_exit(code))
            self.record_service(service, state="ended", exit_code=code)
            when = _("while stage {name} was {state}").format(
                name=self._stage.name, state=_("running") if self.main else _("starting")
            )
            when = when if service.has_been_ready else _("before it was ready")
            raise StageAborted(causes.explain_service_exit(self._stage, service.plan, code, when))

    def write_evidence_and_raise_on_unresponsive(self) -> None:
        for service in self.services:
            if service.is_unresponsive:
                plan, answer = service.plan, service.last_problem_or_no_answer
                self._refuse(service, answer)
                cause = causes.explain_unresponsive_service(self._stage, plan, answer)
                what = f"answers of {plan.name}"
                raise StageAborted(self.hang.write_timeout_evidence(cause, plan.answer_s, what))

    def record_gate_and_raise_on_broken_rule(self, only_log: str = "") -> None:
        forbidden = [each for each in self.gate.events.forbidden if only_log in ("", each.rule.log)]
        if forbidden:
            self._record_gate_if_changed()
            first = min(forbidden, key=lambda each: (each.rule.log == STAGE_LOG, each.line.number))
            if first.rule.log == STAGE_LOG:
                self.wait_and_raise_if_service_dies(_SETTLE_LINE_S)
            raise StageAborted(causes.explain_forbidden_line(self._stage, first))
        for violation in self.gate.events.violations:
            if only_log in ("", violation.rule.log):
                self._record_gate_if_changed()
                raise StageAborted(causes.explain_violation(self._stage, violation))

    def start_rule_timers_and_liveness(self) -> None:
        self._command_begun = time.monotonic()
        for service in self.services:
            service.begin_liveness_checks()

    def read_all_outputs_and_decide_rules(self) -> None:
        self.logs.copy_and_dispatch_everything_written()
        self.logs.dispatch_partial_line(STAGE_LOG)
        while self._read_metric_files():
            pass
        for tail in self._metric_files.values():
            tail.close()
        self._read_all_metric_files()
        if self._command_begun is not None:
            self.gate.fail_late_rules(time.monotonic() - self._command_begun)
        self.gate.close_logs_and_decide_undecided_lines()
        self._command_begun = None

    def wait_and_raise_if_service_dies(self, patience_s: float) -> None:
        """Wait for a service that is dying: its end counts before what its clients made of it."""
        until = time.monotonic() + patience_s
        while self.services and time.monotonic() < until and not self._context.interrupt.name:
            self.record_and_raise_on_dead_service(TOLD_TO_STOP)
            self.pump.wait_for_growth(_LOOK_S)

    def read_rest_and_close_logs(self) -> None:
        self.pump.drain_and_close_all_but_logs()
        self.logs.dispatch_remaining()
        self.record_new_gate_events_and_fatals()
        for log in self.pump.logs.values():
            log.close_without_flush()

    def record_stage_and_gate(self, **changes: object) -> None:
        self._recorded = self.gate.events.revision
        self._context.journal.update_stage_and_log_state_change(
            self._stage.name, gate=self.gate.copy_rule_states(), **changes
        )

    def _record_gate_if_changed(self) -> None:
        if self.gate.events.revision != self._recorded:
            self.record_stage_and_gate()

    def record_service(self, service: RunningService, **changes: object) -> None:
        self._context.journal.update_service_and_log_state_change(self._stage.name, service.plan.name, **changes)

    def _refuse(self, service: RunningService, seen: str) -> None:
        self.gate.set_broken(self.gate.outcomes.services[service.plan.name], seen)

    def _read_metric_files(self) -> bool:
        has_grown = False
        for path, tail in self._metric_files.items():
            with contextlib.suppress(OSError):  # a file that cannot be read has no points, which the rule tells
                if data := tail.read_next_block_or_empty():
                    self.gate.feed(path, data)
                    has_grown = True
        return has_grown

    def _read_all_metric_files(self) -> None:
        if self._all_metric_files:
            self.gate.check_metric_rows(self._all_metric_files.read_new_rows())

    def _judge(self, log: str, texts: LineBlock) -> None:
        texts.hits = find_candidate_line_indexes((*self.gate.pending_patterns(log), *self._scanned), texts)
        self.gate.check_lines(log, texts)

    def _hear(self, log: str, texts: LineBlock) -> None:
        for service in self.services:
            if service.plan.name == log:
                service.record_ready_line_if_present(texts)

    def _find_fatal(self, log: str, texts: LineBlock) -> None:
        finder = self._finders[log]
        finder.feed(texts)
        if finder.first_fatal and self.gate.is_model_text_or_followed_by_steps(
            log, finder.first_fatal.number, finder.first_fatal.text
        ):
            self.forget_fatals_so_far(log)
