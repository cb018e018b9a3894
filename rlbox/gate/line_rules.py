"""The states of a gate's rules; required, forbidden and benign lines: their markers, order, and what excuses them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rlbox.amounts import exact_duration_text
from rlbox.config.pattern import compile_re2
from rlbox.gate.log_search import LinePatternCallback, ModelTextTracker, StepTracker, writer_prefix_or_empty
from rlbox.i18n import _, join
from rlbox.job.gate import BenignRule, FixBenignRule, ForbidRule, MetricRule, RequireRule
from rlbox.job.names import ProblemOrEmpty
from rlbox.logs.lines import (
    NumberedLine,
    count_omitted_ray_repeats,
    find_ray_actor_or_task_name_or_empty,
    list_variants_without_ray_rank_and_bar,
    strip_ray_prefix_and_repeat,
)

RuleKind = Literal[
    "need", "port", "service", "require", "forbid", "benign", "metric", "exit", "ray", "probe", "listens", "file",
    "silence", "total",
]  # fmt: skip
RuleStatus = Literal["waiting", "held", "broken"]

HELD_UNLESS_BROKEN: frozenset[RuleKind] = frozenset({"forbid", "benign", "listens", "silence", "total"})
"""Rules that hold when the end of a stage finds them unbroken."""
_SEEN_LIMIT = 500


@dataclass(kw_only=True)
class RuleState:
    """One rule of a gate as text, and the line or fact that decided it (`seen`); `count` lines or points fitted."""

    kind: RuleKind
    rule: str
    state: RuleStatus = "waiting"
    seen: str = ""
    count: int = 0

    @property
    def kind_and_rule(self) -> str:
        """The rule with its kind before it, where it does not begin with that word itself."""
        return self.rule if self.rule.startswith(self.kind) else join(" ", (self.kind, self.rule))


@dataclass(frozen=True, kw_only=True)
class ForbiddenLineMatch:
    rule: ForbidRule
    line: NumberedLine


@dataclass(frozen=True, kw_only=True)
class RuleViolation:
    rule: RequireRule | MetricRule
    problem: ProblemOrEmpty
    line: NumberedLine | None = None
    timed_out: bool = False


@dataclass
class GateEvents:
    """What the rules of one gate report: `revision` grows with every change of a state.

    `warnings` are forbidden lines of a process that went on making steps. Once the stage `is_stopping` nothing that
    comes breaks a rule.
    """

    revision: int = 0
    is_stopping: bool = False
    forbidden: list[ForbiddenLineMatch] = field(default_factory=list)
    warnings: list[ForbiddenLineMatch] = field(default_factory=list)
    violations: list[RuleViolation] = field(default_factory=list)

    def set_unless_broken(self, state: RuleState, status: RuleStatus, evidence: str) -> None:
        if state.state != "broken" and (state.state, state.seen) != (status, evidence[:_SEEN_LIMIT]):
            state.state, state.seen = status, evidence[:_SEEN_LIMIT]
            self.revision += 1

    def break_rule_and_record_unless_stopping(self, state: RuleState, violation: RuleViolation) -> None:
        if self.is_stopping or state.state == "broken":
            return
        line = violation.line
        self.set_unless_broken(state, "broken", f"{violation.problem}: {line.text}" if line else violation.problem)
        self.violations.append(violation)


_ECHO = re.compile(r"\+{1,9} \S|(?:\S+\s+){0,8}Running entrypoint for job \S+: ")
"""What a shell (`set -x`) or Ray says that it starts: the words of a command, which has done nothing yet."""
_ACTORS = 256
"""Names of Ray's actors and tasks that one rule remembers."""


def is_command_echo_unless_sought(line_text: str, sought_pattern: str) -> bool:
    return (
        _ECHO.match(strip_ray_prefix_and_repeat(line_text)) is not None
        and r"\+" not in sought_pattern
        and "entrypoint" not in sought_pattern
    )


class _Marker:
    def __init__(self, pattern: str) -> None:
        self.number = 0
        self.matchers = [LinePatternCallback(pattern, self._on_match)] if pattern else []

    def is_before(self, line: NumberedLine) -> bool:
        return 0 < self.number < line.number

    def _on_match(self, line: NumberedLine, text: str) -> None:
        self.number = line.number
        self.matchers[0].is_done = True


class _LineCounter:
    """Counts how many lines one stands for.

    Ray's driver prints the first of many alike whole, and 5 s later one for all others of that actor's name. What ends
    like that without a first one before it is a text that quotes such a line.
    """

    def __init__(self) -> None:
        self._actors: set[str] = set()

    def count_represented_lines(self, line: NumberedLine) -> int:
        actor, repeats = find_ray_actor_or_task_name_or_empty(line.text), count_omitted_ray_repeats(line.text)
        if repeats:
            return repeats if actor in self._actors else 1
        if actor and len(self._actors) < _ACTORS:
            self._actors.add(actor)
        return 1


class RequiredLineTracker:
    def __init__(self, rule: RequireRule, events: GateEvents) -> None:
        self.rule = rule
        self.state = RuleState(kind="require", rule=rule.describe())
        self.predecessor: RequiredLineTracker | None = None
        self._events = events
        self._counter = _LineCounter()
        self._after = _Marker(rule.after)
        self._matcher = LinePatternCallback(rule.pattern, self._on_match)

    def matchers(self) -> list[LinePatternCallback]:
        return [self._matcher, *self._after.matchers]

    def record_violation_if_late(self, elapsed_s: float) -> None:
        limit, count = self.rule.within_s, self.rule.count
        if limit is not None and self.state.state == "waiting" and elapsed_s > limit:
            late = _("{found} of {count} lines within {limit}") if count > 1 else _("no such line within {limit}")
            problem = late.format(found=self.state.count, count=count, limit=exact_duration_text(limit))
            self._violate(problem, timed_out=True)

    def _on_match(self, line: NumberedLine, text: str) -> None:
        if self.rule.after and not self._after.is_before(line):
            return
        if self.state.state == "broken" or is_command_echo_unless_sought(line.text, self.rule.pattern):
            return
        if self.predecessor and not self.predecessor.state.count:
            self._violate(_("came before {pattern}").format(pattern=self.predecessor.rule.pattern), line)
            return
        self.state.count += self._counter.count_represented_lines(line)
        if self.state.state == "waiting":
            self._events.revision += 1  # a further line is recorded even when it reads like the one before
            status: RuleStatus = "held" if self.state.count >= self.rule.count else "waiting"
            self._events.set_unless_broken(self.state, status, line.text)
        if self.rule.at_most is None:
            self._matcher.is_done = self.state.state == "held"
        elif self.state.count > self.rule.at_most:
            too_many = _("{count} lines, at most {most} are allowed")
            self._violate(too_many.format(count=self.state.count, most=self.rule.at_most), line)

    def _violate(self, problem: str, line: NumberedLine | None = None, *, timed_out: bool = False) -> None:
        self._events.break_rule_and_record_unless_stopping(
            self.state, RuleViolation(rule=self.rule, problem=problem, line=line, timed_out=timed_out)
        )


class _DoubtfulLine(NamedTuple):
    """A forbidden line that counts when no step of its process follows until `due_s`, or the text around it no end."""

    line: NumberedLine
    due_s: float
    is_quoted: bool


class ForbiddenLineTracker:
    def __init__(
        self,
        rule: ForbidRule,
        events: GateEvents,
        benign: BenignLineTracker,
        model_texts: ModelTextTracker,
        steps: StepTracker | None,
    ) -> None:
        self.rule = rule
        self.state = RuleState(kind="forbid", rule=rule.describe())
        self._events = events
        self._benign = benign
        self._model_texts = model_texts
        self._steps = None if rule.always else steps
        self._counter = _LineCounter()
        self._doubtful: dict[tuple[str, bool], _DoubtfulLine] = {}
        self._after, self._until = _Marker(rule.after), _Marker(rule.until)
        self._matcher = LinePatternCallback(rule.pattern, self._on_match, reads_overwritten=True, is_forbidden=True)

    def matchers(self) -> list[LinePatternCallback]:
        return [self._matcher, *self._after.matchers, *self._until.matchers]

    @property
    def has_undecided_lines(self) -> bool:
        return bool(self._doubtful)

    def drop_warn_or_break_undecided_lines(self, *, log_ended: bool = False) -> None:
        """Decide on lines in doubt: those of a text that ended are gone, of a process that made a step a warning.

        With `log_ended` nothing more can come: those that are left count.
        """
        for key, doubt in list(self._doubtful.items()):
            line = doubt.line
            if self._model_texts.is_in_ended_text_or_model_output(line.number, line.text):
                del self._doubtful[key]
            elif doubt.is_quoted and not log_ended and self._model_texts.expire_and_check_open(line):
                continue
            elif self._steps and not doubt.is_quoted and self._steps.has_writer_steps_after(line.number, line.text):
                del self._doubtful[key]
                self._events.warnings.append(ForbiddenLineMatch(rule=self.rule, line=line))
                self._events.set_unless_broken(self.state, "waiting", line.text)
            elif log_ended or doubt.is_quoted or (self._steps and self._steps.elapsed_s > doubt.due_s):
                del self._doubtful[key]
                self._break(line)

    def _on_match(self, line: NumberedLine, text: str) -> None:
        if (self.rule.after and not self._after.is_before(line)) or self._until.is_before(line):
            return
        if self._events.is_stopping or self._benign.matches_line(self.rule.log, line.number, line.text):
            return
        self.state.count += self._counter.count_represented_lines(line)
        is_quoted = self._model_texts.expire_and_check_open(line)
        wait_s = due_s = 0.0
        if self._steps and not self._steps.is_latest_step_of_its_writer(line):
            wait_s = self._steps.estimate_writer_step_timeout_s(line.text) or 0.0
            due_s = self._steps.elapsed_s + wait_s
        self.drop_warn_or_break_undecided_lines()
        if not is_quoted and not wait_s:
            self._break(line)
            return
        self._doubtful.setdefault((writer_prefix_or_empty(line.text), is_quoted), _DoubtfulLine(line, due_s, is_quoted))

    def _break(self, line: NumberedLine) -> None:
        if self.state.state != "broken":
            self._events.forbidden.append(ForbiddenLineMatch(rule=self.rule, line=line))
        self._events.set_unless_broken(self.state, "broken", line.text)


class BenignLineTracker:
    def __init__(self, rules: Sequence[BenignRule], events: GateEvents) -> None:
        self._rules = [(rule, RuleState(kind="benign", rule=rule.describe())) for rule in rules]
        self._markers: dict[tuple[str, str], _Marker] = {}
        self._events = events

    def list_job_and_matched_states(self) -> list[RuleState]:
        """Return the states of the job's rules, and of those lines of the catalogue that came."""
        return [state for rule, state in self._rules if state.count or not isinstance(rule, FixBenignRule)]

    def matchers(self, log: str) -> Iterator[LinePatternCallback]:
        for rule, state in self._rules:
            if rule.log in ("", log):
                yield self._matcher(log, rule, state)
                if rule.after and (log, rule.after) not in self._markers:
                    marker = self._markers[log, rule.after] = _Marker(rule.after)
                    yield from marker.matchers

    def matches_line(self, log_name: str, line_number: int, text: str) -> bool:
        variants = list_variants_without_ray_rank_and_bar(text)
        return any(
            rule.log in ("", log_name)
            and self._is_due(rule, log_name, line_number)
            and any(map(compile_re2(rule.pattern).search, variants))
            for rule, _ in self._rules
        )

    def _is_due(self, rule: BenignRule, log: str, number: int) -> bool:
        return not rule.after or 0 < self._markers[log, rule.after].number < number

    def _matcher(self, log: str, rule: BenignRule, state: RuleState) -> LinePatternCallback:
        def on_match(line: NumberedLine, text: str) -> None:
            if self._is_due(rule, log, line.number):
                state.count += 1
                self._events.set_unless_broken(state, "held", line.text)
                matcher.is_done = True

        matcher = LinePatternCallback(rule.pattern, on_match)
        return matcher
