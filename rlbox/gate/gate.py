"""The gate of a stage: rules that wait, hold or break as log lines and facts come in. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rlbox.amounts import limit_text
from rlbox.gate.lines import BenignRules, LineRule, RuleEvents, is_command_echo
from rlbox.gate.log_context import LineMatcher, ModelTextFilter, StepTracker
from rlbox.gate.metric import MetricChecker, parse_number
from rlbox.gate.rules import AT_END, GateRule, RuleState, format_exit_rule, format_metric_rule, format_probe
from rlbox.gate.search import LogSearch
from rlbox.job.gate_plan import BenignPlan, FilePlan, LinePlan, MetricPlan
from rlbox.job.names import STAGE_LOG
from rlbox.job.plan import StagePlan
from rlbox.logs.lines import Line, LineSplitter, make_block
from rlbox.logs.patterns import compile_pattern


@dataclass(frozen=True, kw_only=True)
class OutcomeRules:
    """One rule for each fact that a stage is asked for; `needs`, `probes` and `files` in the order of its plan.

    `ports` are by service and name of the port, `services` by name. `ray` is there for a stage that is a Ray job.
    """

    needs: tuple[GateRule, ...]
    ports: Mapping[tuple[str, str], GateRule]
    services: Mapping[str, GateRule]
    exit: GateRule
    ray: GateRule | None
    probes: tuple[GateRule, ...]
    listens: GateRule
    files: tuple[GateRule, ...]
    silence: GateRule
    total: GateRule

    def before(self) -> list[GateRule]:
        """Return those that are decided before the command of the stage is started, in that order."""
        return [*self.needs, *self.ports.values(), *self.services.values()]

    def after(self) -> list[GateRule]:
        """Return those that are decided by the command and at its end."""
        ray = [self.ray] if self.ray else []
        return [self.exit, *ray, *self.probes, self.listens, *self.files, self.silence, self.total]


def make_outcome_rules(stage: StagePlan) -> OutcomeRules:
    """Return the rules of a stage, all of them waiting."""
    return OutcomeRules(
        needs=tuple(GateRule("need", need.path) for need in stage.needs),
        ports={
            (service.name, name): GateRule("port", f"{name} {number}")
            for service in stage.services
            for name, number in service.ports.items()
        },
        services={service.name: GateRule("service", service.name) for service in stage.services},
        exit=GateRule("exit", format_exit_rule(stage)),
        ray=GateRule("ray", "job SUCCEEDED") if stage.ray else None,
        probes=tuple(GateRule("probe", format_probe(probe)) for probe in stage.probes),
        listens=GateRule("listens", "listens on nothing but what the job declares"),
        files=tuple(GateRule("file", _file_text(file)) for file in stage.files),
        silence=GateRule("silence", f"at most {limit_text(stage.silence_s)}"),
        total=GateRule("total", f"at most {limit_text(stage.total_s)}"),
    )


def _file_text(file: FilePlan) -> str:
    conditions = [f"at least {file.count}"] if file.count > 1 else []
    conditions += [file.format] if file.format else []
    conditions += ["written by the stage"] if file.newer else []
    return f"{file.path} ({', '.join(conditions)})" if conditions else file.path


class GateChecker:
    """The rules of one stage and their states.

    `facts` are the rules that the caller decides (`mark_passed`, `mark_failed`); lines and numbers decide all others.
    `revision`
    grows with every change of a state, so that a caller can tell cheaply whether there is something new to record.
    `forbidden` are forbidden lines that came, `breaches` other rules that can no longer hold: each of them ends the
    stage at once; `noted` are forbidden lines of a process that went on making steps. `benign` says which lines are no
    failure: the job's, and those `known` to the fix catalogue, which are shown once they came. What a model wrote
    (`model_output`, `model_texts`) is read by no rule.
    """

    def __init__(self, stage: StagePlan, known: tuple[BenignPlan, ...] = ()) -> None:
        self._board = RuleEvents()
        self.forbidden, self.breaches = self._board.forbidden, self._board.breaches
        self.noted = self._board.noted
        self._steps = StepTracker()
        self.benign = BenignRules((*stage.benign, *known), self._board)
        names = (STAGE_LOG, *(service.name for service in stage.services))
        self._quotes = {name: ModelTextFilter(stage.model_output, stage.model_texts) for name in names}
        self._lines = [self._line_rule("require", plan) for plan in stage.require]
        self._lines += [self._line_rule("forbid", plan) for plan in stage.forbid]
        self._metrics = [_MetricRule(plan, self._board, self._steps_of(plan.log)) for plan in stage.metrics]
        self.facts = make_outcome_rules(stage)
        if stage.ordered:
            _put_in_order([rule for rule in self._lines if rule.kind == "require"])
        self._logs = {
            name: LogSearch(self._watchers(name), quotes, self._steps_of(name), self._in_doubt)
            for name, quotes in self._quotes.items()
        }
        self._cutters = {name: LineSplitter() for name in (*names, *self.metric_files)}

    @property
    def revision(self) -> int:
        return self._board.revision

    @property
    def metric_files(self) -> tuple[str, ...]:
        """The files of JSON lines that metrics come from; their new bytes are fed under these names."""
        return tuple(dict.fromkeys(rule.plan.file for rule in self._metrics if rule.plan.key))

    def feed(self, log: str, data: bytes) -> None:
        """Take the next bytes of a log: `stage`, the name of a service, or one of `metric_files`."""
        cutter = self._cutters[log]
        first = cutter.number + 1
        self.take(log, first, cutter.feed(data))

    def take(self, log: str, first: int, texts: Sequence[str]) -> None:
        """Look at lines of a log that were cut elsewhere; the first has the number `first`."""
        if log in self._logs:
            self._logs[log].take(first, make_block(texts))
            self._settle()
            return
        for rule in self._metrics:
            if rule.plan.key and rule.plan.file == log:
                rule.take_rows(texts)

    def searches(self, log: str) -> tuple[str, ...]:
        """Return the expressions that are still looked for in a log, for one search together with others'.

        Who searches for all of them puts the indexes of lines that hit into `LineBlock.hits` of the block. It is the
        same object as long as nothing changes.
        """
        return self._logs[log].searches

    def close_logs(self) -> None:
        """Count the last lines of all logs, also those without a line feed."""
        for log, cutter in self._cutters.items():
            first = cutter.number + 1
            self.take(log, first, cutter.close())
        self.end_command()

    def begin_stop(self) -> None:
        """From here on forbidden lines break nothing: what is being stopped may complain about it."""
        self._board.stopping = True

    def pass_time(self, elapsed_s: float) -> None:
        """Say how many seconds ago the command was started; all that was written until then must have been taken."""
        self._steps.elapsed_s = elapsed_s
        self._settle()
        for rule in self._lines:
            rule.pass_time(elapsed_s)

    def end_command(self) -> None:
        """Say that the command has ended, and all that it wrote was taken: no further step comes."""
        self._settle(over=True)

    def is_benign(self, log: str, number: int, text: str) -> bool:
        """Return whether a line is no failure: benign, what a model wrote, or of a lane that made steps after it."""
        return self.is_superseded(log, number, text) or self.benign.is_benign(log, number, text)

    def is_superseded(self, log: str, number: int, text: str) -> bool:
        """Return whether what came after a line shows that it is no failure: the end of a model's text, or steps.

        Of these its lane must have made two, since one may have been on its way.
        """
        return self._quotes[log].holds(number, text) or (log == STAGE_LOG and self._steps.since(text, number) > 1)

    def last_line(self, log: str) -> str:
        """Return the last line of a log that is not blank, or an empty text."""
        return self._logs[log].last[:500]

    def mark_passed(self, rule: GateRule, seen: str = "") -> None:
        """Record that one of the `facts` is as the rule wants it."""
        self._board.revision += rule.decide("held", seen)

    def mark_failed(self, rule: GateRule, seen: str) -> None:
        """Record that one of the `facts` breaks its rule."""
        self._board.revision += rule.decide("broken", seen)

    def end(self) -> None:
        self._board.stopping = False
        for metric in self._metrics:
            metric.end()
        for rule in self._all():
            if rule.state == "waiting" and rule.kind in AT_END:
                self._board.revision += rule.decide("held", rule.seen)
            elif rule.state == "waiting" and isinstance(rule, LineRule):
                self._board.revision += rule.decide("broken", self.last_line(rule.plan.log))

    def missing_lines(self) -> list[tuple[LinePlan, int]]:
        """Return the line rules that do not hold yet, each with the number of lines that fitted."""
        return [(rule.plan, rule.count) for rule in self._lines if rule.kind == "require" and rule.state == "waiting"]

    def states(self) -> tuple[RuleState, ...]:
        return tuple(rule.as_state() for rule in self._all())

    def _all(self) -> list[GateRule]:
        return [*self.facts.before(), *self._lines, *self.benign.rules(), *self._metrics, *self.facts.after()]

    def _line_rule(self, kind: Literal["require", "forbid"], plan: LinePlan) -> LineRule:
        steps = None if plan.always else self._steps_of(plan.log)
        return LineRule(kind, plan, self._board, self.benign, self._quotes[plan.log], steps)

    def _steps_of(self, log: str) -> StepTracker | None:
        return self._steps if log == STAGE_LOG else None

    def _in_doubt(self) -> bool:
        return any(rule.in_doubt for rule in self._lines)

    def _settle(self, *, over: bool = False) -> None:
        for rule in self._lines:
            rule.settle(over=over)

    def _watchers(self, log: str) -> Iterator[LineMatcher]:
        yield from self._quotes[log].watchers()
        for metric in self._metrics:  # before the lines: one that tells of a step quotes nothing
            if metric.plan.pattern and metric.plan.log == log:
                yield LineMatcher(metric.plan.pattern, metric.met, rewritten=True)
        for rule in self._lines:
            if rule.plan.log == log:
                yield from rule.watchers()
        yield from self.benign.watchers(log)


class _MetricRule(GateRule):
    def __init__(self, plan: MetricPlan, board: RuleEvents, steps: StepTracker | None) -> None:
        super().__init__("metric", format_metric_rule(plan))
        self.plan = plan
        self._steps = steps
        self._board = board
        self._metric = MetricChecker(plan)

    def met(self, line: Line, way: str) -> None:
        if is_command_echo(line.text, self.plan.pattern):
            return
        groups = compile_pattern(self.plan.pattern).find_groups(way) or {}
        step = parse_number(groups.get("step") or "")
        if self._steps and step is not None:
            self._steps.hear(line, self.plan.pattern, step)
        if self.state != "broken" and not self._board.stopping:
            self._metric.take_groups(groups)
            self._tell(line)

    def take_rows(self, rows: Sequence[str]) -> None:
        for row in rows:
            if self.state != "broken":
                self._metric.take_row(row)
                self._tell(None)

    def end(self) -> None:
        if self.state != "broken":
            self._metric.end()
            self._tell(None)
        if self.state != "broken":
            self._board.revision += self.decide("held", self._metric.told)

    def _tell(self, line: Line | None) -> None:
        self.count = self._metric.points
        if self._metric.problem:
            self._board.breach(self, self.plan.log, self._metric.problem, line=line, reason=self.plan.why)
            return
        self.seen = self._metric.told
        self._board.revision += self.count & (self.count - 1) == 0  # 1, 2, 4, 8: each is written to the disk


def _put_in_order(rules: Sequence[LineRule]) -> None:
    last: dict[str, LineRule] = {}
    for rule in rules:
        rule.before = last.get(rule.plan.log)
        last[rule.plan.log] = rule
