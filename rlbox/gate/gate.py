"""The gate of a stage: rules that wait, hold or break as log lines and facts come in. No clock, no I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from rlbox.amounts import exact_duration_text
from rlbox.gate.line_rules import (
    HELD_UNLESS_BROKEN,
    BenignLineTracker,
    ForbiddenLineTracker,
    GateEvents,
    RequiredLineTracker,
    RuleState,
)
from rlbox.gate.log_search import LinePatternCallback, LogSearch, ModelTextTracker, StepTracker
from rlbox.gate.metric import MetricChecker, NanLossOrRewardChecker
from rlbox.i18n import _
from rlbox.job.gate import FixBenignRule
from rlbox.job.names import STAGE_LOG, ProblemOrEmpty
from rlbox.job.plan import StagePlan
from rlbox.logs.lines import LineBlock, LineSplitter, NumberedLine
from rlbox.logs.metric_files import StepMetricsWithFormatAndFolder


class CallerDecidedRules:
    """The states of the rules that the caller decides; `needs`, `probes` and `files` in the order of the plan.

    `ports` are by service and name of the port, `services` by name. `ray` is there for a stage that is a Ray job.
    """

    def __init__(self, stage: StagePlan) -> None:
        exit_codes = _("exit code {codes}").format(codes=" or ".join(map(str, stage.exit_codes)))
        at_most = _("at most {value}")
        self.needs = [RuleState(kind="need", rule=need.path) for need in stage.needs]
        self.ports = {
            (service.name, name): RuleState(kind="port", rule=f"{name} {number}")
            for service in stage.services
            for name, number in service.ports.items()
        }
        self.services = {service.name: RuleState(kind="service", rule=service.name) for service in stage.services}
        self.exit = RuleState(kind="exit", rule="driver_exit_code 0" if stage.ray else exit_codes)
        self.ray = RuleState(kind="ray", rule="job SUCCEEDED") if stage.ray else None
        self.probes = [RuleState(kind="probe", rule=probe.describe()) for probe in stage.probes]
        self.listens = RuleState(kind="listens", rule=_("listens on nothing but what the job declares"))
        self.files = [RuleState(kind="file", rule=file.describe()) for file in stage.files]
        self.silence = RuleState(kind="silence", rule=at_most.format(value=exact_duration_text(stage.silence_s)))
        self.total = RuleState(kind="total", rule=at_most.format(value=exact_duration_text(stage.total_s)))

    def list_rules_decided_before_start(self) -> list[RuleState]:
        return [*self.needs, *self.ports.values(), *self.services.values()]

    def list_rules_decided_after_start(self) -> list[RuleState]:
        ray = [self.ray] if self.ray else []
        return [self.exit, *ray, *self.probes, self.listens, *self.files, self.silence, self.total]


class GateChecker:
    """The rules of one stage and their states: the caller decides `outcomes`, lines and numbers decide all others.

    Each of `events.forbidden` and `events.violations` ends the stage at once. No rule reads what a model wrote.
    """

    def __init__(self, stage: StagePlan, catalogue_lines: tuple[FixBenignRule, ...] = ()) -> None:
        self.events = GateEvents()
        self.outcomes = CallerDecidedRules(stage)
        self._steps = StepTracker()
        self._benign = BenignLineTracker((*stage.benign, *catalogue_lines), self.events)
        logs = (STAGE_LOG, *(service.name for service in stage.services))
        self._model_texts = {log: ModelTextTracker(stage.model_output, stage.model_texts) for log in logs}
        self._required = [RequiredLineTracker(rule, self.events) for rule in stage.require]
        self._forbidden = [
            ForbiddenLineTracker(rule, self.events, self._benign, self._model_texts[rule.log], self._steps_of(rule.log))
            for rule in stage.forbid
        ]
        self._metrics = [MetricChecker(rule, self.events, self._steps_of(rule.log)) for rule in stage.metrics]
        may_be_nan = any(not rule.finite for rule in stage.metrics)
        self._nan = None if may_be_nan else NanLossOrRewardChecker(self.events, self._is_benign_stage_line)
        for index, line in enumerate(self._required if stage.ordered else ()):
            earlier = [each for each in self._required[:index] if each.rule.log == line.rule.log]
            line.predecessor = earlier[-1] if earlier else None
        self._searches = {
            log: LogSearch(self._matchers(log), texts, self._steps_of(log), self._has_undecided_lines)
            for log, texts in self._model_texts.items()
        }
        self._splitters = {name: LineSplitter() for name in (*logs, *self.metric_file_paths)}

    @property
    def metric_file_paths(self) -> tuple[str, ...]:
        """The files of JSON lines that metrics come from; their new bytes are fed under these names."""
        return tuple(dict.fromkeys(metric.rule.file for metric in self._metrics if metric.rule.key))

    @property
    def reads_all_metric_files(self) -> bool:
        return any(metric.rule.metric for metric in self._metrics)

    def check_metric_rows(self, rows: Iterable[StepMetricsWithFormatAndFolder]) -> None:
        for source, row in rows:
            for metric in self._metrics:
                if metric.rule.metric:
                    metric.check_metric_row_of_first_source(source, row)

    def feed(self, log_or_metric_file: str, data: bytes) -> None:
        self.check_lines(log_or_metric_file, self._splitters[log_or_metric_file].feed(data))

    def check_lines(self, log_or_metric_file: str, lines: LineBlock) -> None:
        if log_or_metric_file in self._searches:
            self._searches[log_or_metric_file].call_matchers_and_record_steps(lines)
            self._decide_lines()
            return
        for metric in self._metrics:
            if metric.rule.key and metric.rule.file == log_or_metric_file:
                metric.check_json_rows(lines)

    def pending_patterns(self, log_name: str) -> tuple[str, ...]:
        """Return the expressions that are still looked for in a log; who searches for them sets `LineBlock.hits`."""
        return self._searches[log_name].pending_patterns

    def close_logs_and_decide_undecided_lines(self) -> None:
        """Read last lines without a line feed, and decide as at the end of the command: no further step comes."""
        for log, splitter in self._splitters.items():
            self.check_lines(log, splitter.close())
        self._decide_lines(log_ended=True)

    def ignore_failures_while_stopping(self) -> None:
        self.events.is_stopping = True

    def fail_late_rules(self, elapsed_s: float) -> None:
        """Break rules that are late, `elapsed_s` after the command's start; all written until then was read."""
        self._steps.elapsed_s = elapsed_s
        self._decide_lines()
        for line in self._required:
            line.record_violation_if_late(elapsed_s)

    def is_harmless_line_so_far(self, log_name: str, line_number: int, text: str) -> bool:
        return self.is_model_text_or_followed_by_steps(log_name, line_number, text) or self._benign.matches_line(
            log_name, line_number, text
        )

    def is_model_text_or_followed_by_steps(self, log_name: str, line_number: int, text: str) -> bool:
        """Return whether what came after a line shows that it is no failure: the end of a model's text, or steps.

        Of these its process must have made two, since one may have been on its way.
        """
        if self._model_texts[log_name].is_in_ended_text_or_model_output(line_number, text):
            return True
        return log_name == STAGE_LOG and self._steps.has_writer_steps_after(line_number, text, at_least=2)

    def last_nonblank_line(self, log_name: str) -> str:
        return self._searches[log_name].last_line[:500]

    def set_held_unless_broken(self, state: RuleState, evidence: str = "") -> None:
        self.events.set_unless_broken(state, "held", evidence)

    def set_broken(self, state: RuleState, evidence: str) -> None:
        self.events.set_unless_broken(state, "broken", evidence)

    def set_broken_if_problem_else_held(self, state: RuleState, problem: ProblemOrEmpty, evidence_if_held: str) -> None:
        self.events.set_unless_broken(state, "broken" if problem else "held", problem or evidence_if_held)

    def decide_waiting_rules_except_caller_decided(self) -> None:
        """Decide all rules that still wait, except those of `outcomes` that the caller decides."""
        self.events.is_stopping = False
        for metric in self._metrics:
            metric.record_final_verdict()
        for line in self._required:
            if line.state.state == "waiting":
                self.set_broken(line.state, self.last_nonblank_line(line.rule.log))
        for state in self._all_states():
            if state.state == "waiting" and state.kind in HELD_UNLESS_BROKEN:
                self.set_held_unless_broken(state, state.seen)

    def list_waiting_required_lines(self) -> list[RequiredLineTracker]:
        return [line for line in self._required if line.state.state == "waiting"]

    def copy_rule_states(self) -> tuple[RuleState, ...]:
        return tuple(dataclasses.replace(state) for state in self._all_states())

    def _all_states(self) -> list[RuleState]:
        return [
            *self.outcomes.list_rules_decided_before_start(),
            *(line.state for line in self._lines()),
            *self._benign.list_job_and_matched_states(),
            *(metric.state for metric in self._metrics),
            *([self._nan.state] if self._nan and self._nan.state.state == "broken" else []),
            *self.outcomes.list_rules_decided_after_start(),
        ]

    def _is_benign_stage_line(self, line: NumberedLine) -> bool:
        return self._benign.matches_line(STAGE_LOG, line.number, line.text)

    def _has_undecided_lines(self) -> bool:
        return any(line.has_undecided_lines for line in self._forbidden)

    def _lines(self) -> list[RequiredLineTracker | ForbiddenLineTracker]:
        return [*self._required, *self._forbidden]

    def _steps_of(self, log: str) -> StepTracker | None:
        return self._steps if log == STAGE_LOG else None

    def _decide_lines(self, *, log_ended: bool = False) -> None:
        for line in self._forbidden:
            line.drop_warn_or_break_undecided_lines(log_ended=log_ended)

    def _matchers(self, log: str) -> Iterator[LinePatternCallback]:
        yield from self._model_texts[log].matchers()
        for metric in self._metrics:
            yield from metric.matchers(log)
        if self._nan and log == STAGE_LOG:
            yield self._nan.matcher
        for line in self._lines():
            if line.rule.log == log:
                yield from line.matchers()
        yield from self._benign.matchers(log)
