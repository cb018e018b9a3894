"""Conditions on the numbers that a stage reports: finite, within limits, falling, enough of them."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from rlbox.config.pattern import compile_re2
from rlbox.foreign import parse_decimal_number, parse_untrusted_json
from rlbox.gate.line_rules import GateEvents, RuleState, RuleViolation, is_command_echo_unless_sought
from rlbox.gate.log_search import LinePatternCallback, StepTracker, writer_prefix_or_empty
from rlbox.i18n import _, join
from rlbox.job.gate import MetricRule
from rlbox.job.names import ProblemOrEmpty
from rlbox.logs.lines import NumberedLine
from rlbox.logs.metric_files import StepMetrics
from rlbox.logs.metric_names import find_key_of_metric_or_empty, load_trainer_keys_by_common_name

_NOT_FINITE = re.compile(r"(?i)[+-]?(?:nan|inf(?:inity)?)(?![a-z])")
_WRAPPED = re.compile(r"^(?:[A-Za-z_][A-Za-z0-9_.]*\(\[*)+")
"""What Python puts before a number of another kind than its own: `tensor(`, `np.float32(`, `array([`."""
_MISSING = object()


class _NanRule(MetricRule):
    def describe(self) -> str:
        return _("loss and reward: not NaN in three lines")


_NAN_RULE = _NanRule(
    name="loss or reward",
    pattern=r"""(?i)(?:loss|rewards?(?:[/_]mean)?)['"]?\s{0,3}[:=]\s{0,3}['"]?(?:tensor\()?(?P<value>nan)\b""",
    finite=False,
)
_NAN_LINES = 3
"""Lines of one process: a step that the trainer skips, for an overflow of fp16, may show one on each rank."""


class NanLossOrRewardChecker:
    """Ends a stage that goes on with NaN as its loss or reward, whatever rules its job has."""

    def __init__(self, events: GateEvents, is_benign: Callable[[NumberedLine], bool]) -> None:
        self.state = RuleState(kind="metric", rule=_NAN_RULE.describe())
        self._events = events
        self._is_benign = is_benign
        self._count_by_writer: Counter[str] = Counter()
        self.matcher = LinePatternCallback(_NAN_RULE.pattern, self._on_match)

    def _on_match(self, line: NumberedLine, text: str) -> None:
        if self._is_benign(line) or is_command_echo_unless_sought(line.text, _NAN_RULE.pattern):
            return
        writer = writer_prefix_or_empty(line.text)
        self.state.count += 1
        self._count_by_writer[writer] += 1
        if self._count_by_writer[writer] == _NAN_LINES:
            problem = _("{name} is NaN in {count} lines").format(name=_NAN_RULE.name, count=_NAN_LINES)
            violation = RuleViolation(rule=_NAN_RULE, problem=problem, line=line)
            self._events.break_rule_and_record_unless_stopping(self.state, violation)


class MetricChecker:
    def __init__(self, rule: MetricRule, events: GateEvents, steps: StepTracker | None) -> None:
        self.rule = rule
        self.state = RuleState(kind="metric", rule=rule.describe())
        self._events = events
        self._steps = steps
        self._trend = array("d")
        self._trend_is_due = bool(rule.trend)
        self._first_step = 0.0
        self._step = -math.inf
        self._value = math.nan
        self._garbled = ""
        self._source = self._source_key = ""

    def matchers(self, log: str) -> list[LinePatternCallback]:
        is_read = self.rule.pattern and self.rule.log == log
        return [LinePatternCallback(self.rule.pattern, self._on_match, reads_overwritten=True)] if is_read else []

    def check_json_rows(self, rows: Iterable[str]) -> None:
        for row in rows:
            if self.state.state != "broken" and row.strip():
                self._read_row(row)

    def check_metric_row_of_first_source(self, source: str, row: StepMetrics) -> None:
        """Take the point of a row; the file that has the first point gives all: trainers report to several at once."""
        if self.state.state == "broken" or self._source not in ("", source):
            return
        key = self._source_key or find_key_of_metric_or_empty(self.rule.metric, row.values)
        if key in row.values:
            self._source, self._source_key = source, key
            self._add_point(row.values[key], row.step)

    def record_final_verdict(self) -> None:
        """Decide the rule: no further point comes."""
        rule, points = self.rule, self.state.count
        if not points:
            only = _("; {text!r} is no number").format(text=self._garbled) if self._garbled else ""
            keys = load_trainer_keys_by_common_name().get(rule.metric, (rule.metric,)) if rule.metric else ()
            only = _(": no metrics file of the stage has {keys}").format(keys=", ".join(keys)) if keys else only
            self._fail(join("", (_("has no point"), only)))
        elif points < rule.points:
            self._fail(_("has {points} points, at least {least} are due").format(points=points, least=rule.points))
        elif problem := self._trend_problem() or self._limit_problem():
            self._fail(problem)
        if self.state.state != "broken":
            self._events.set_unless_broken(self.state, "held", self._summary())

    def _on_match(self, line: NumberedLine, text: str) -> None:
        if is_command_echo_unless_sought(line.text, self.rule.pattern):
            return
        found = compile_re2(self.rule.pattern).search(text)
        groups = found.groupdict() if found else {}
        step = parse_logged_number(groups.get("step") or "")
        if self._steps and step is not None:
            self._steps.record_step_of_writer_if_greater(line, self.rule.pattern, step)
        if self.state.state == "broken" or self._events.is_stopping:
            return
        value = parse_logged_number(groups.get("value") or "")
        if value is None:  # a line torn by another process: no point, and no proof either
            self._garbled = (groups.get("value") or "")[:80]
            self.state.seen = self._summary()
            return
        self._add_point(value, step, line)

    def _read_row(self, text: str) -> None:
        try:
            row = parse_untrusted_json(text)
        except ValueError:
            self._fail(_("a row of {file} is no JSON: {text}").format(file=self.rule.file, text=text[:80]))
            return
        if not isinstance(row, dict) or any(_get_by_path(row, k) != v for k, v in self.rule.where.items()):
            return
        value = _get_by_path(row, self.rule.key, missing=_MISSING)
        if value is _MISSING:
            return
        number = math.nan if value is None else parse_logged_number(value)  # null is how strict writers put NaN
        if number is None:
            self._fail(_("{key} is no number: {value}").format(key=self.rule.key, value=str(value)[:80]))
            return
        self._add_point(number, parse_logged_number(_get_by_path(row, self.rule.step_key)))

    def _add_point(self, value: float, step: float | None, line: NumberedLine | None = None) -> None:
        """Take the next point; without a step, points are counted from 1."""
        if step is None or not math.isfinite(step):
            step = float(self.state.count + 1)
        if not self.state.count:
            self._first_step = step
        self.state.count += 1
        step_before, self._step, self._value = self._step, step, value
        if problem := self._find_point_problem(step_before):
            self._fail(problem, line)
        if self.state.state != "broken":
            self.state.seen = self._summary()
            self._events.revision += self.state.count & (self.state.count - 1) == 0  # 1, 2, 4, 8: written to the disk

    def _find_point_problem(self, step_before: float) -> ProblemOrEmpty:
        rule = self.rule
        if rule.finite and not math.isfinite(self._value):
            return _("is {value}{at}").format(value=str(self._value), at=self._at())
        if rule.steps_rise and self._step <= step_before:
            return _("step {step:g} came after step {step_before:g}").format(step=self._step, step_before=step_before)
        if rule.when == "always" and (problem := self._limit_problem()):
            return problem
        if self._trend_is_due and rule.within_steps and self._step >= self._first_step + rule.within_steps:
            return self._trend_problem()
        if self._trend_is_due and math.isfinite(self._value):
            self._trend.append(self._value)
        return ""

    def _trend_problem(self) -> ProblemOrEmpty:
        rule = self.rule
        if not self._trend_is_due:
            return ""
        self._trend_is_due = False
        over = _("the first {count} steps") if rule.within_steps else _("{count} points")
        over = over.format(count=rule.within_steps or self.state.count)
        if len(self._trend) < 2:
            return _("has fewer than two points in {over}").format(over=over)
        third = max(1, len(self._trend) // 3)
        first, last = (math.fsum(points) / third for points in (self._trend[:third], self._trend[-third:]))
        if (first - last if rule.trend == "falls" else last - first) > rule.by:
            return ""
        verb = _("fall") if rule.trend == "falls" else _("rise")
        by = _(" by more than {value:g}").format(value=rule.by) if rule.by else ""
        problem = _("did not {verb}{by} in {over}: {first:.4g} at first, {last:.4g} at last")
        return problem.format(verb=verb, by=by, over=over, first=first, last=last)

    def _limit_problem(self) -> ProblemOrEmpty:
        if self.rule.at_least is not None and not self._value >= self.rule.at_least:
            problem = _("is {value}{at}, at least {least:g} is due")
            return problem.format(value=f"{self._value:g}", at=self._at(), least=self.rule.at_least)
        if self.rule.at_most is not None and not self._value <= self.rule.at_most:
            problem = _("is {value}{at}, at most {most:g} is allowed")
            return problem.format(value=f"{self._value:g}", at=self._at(), most=self.rule.at_most)
        return ""

    def _fail(self, problem: str, line: NumberedLine | None = None) -> None:
        violation = RuleViolation(rule=self.rule, problem=join(" ", (self.rule.name, problem)), line=line)
        self._events.break_rule_and_record_unless_stopping(self.state, violation)

    def _summary(self) -> str:
        if not self.state.count:
            return f"no point yet, only {self._garbled!r}" if self._garbled else ""
        return f"{self.state.count} points, the last: {self._value:g}{self._at()}"

    def _at(self) -> str:
        return _(" at step {step:g}").format(step=self._step)


def parse_logged_number(value: Any) -> float | None:
    """Return a number as a log or a row writes it (`2.5`, `1e-05,`, `nan`, `tensor(2.5)`, `np.float32(1)`), or None."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:  # JSON has integers of any size
            return math.inf if value > 0 else -math.inf
    if not isinstance(value, str):
        return None
    text = value.strip().strip("'\"[](){},;:|")
    for way in (text, bare := _WRAPPED.sub("", text)):
        if found := _NOT_FINITE.match(way):
            return float(found.group())
    return parse_decimal_number(bare.rstrip(".%)],"))


def _get_by_path(row: Any, path: str, missing: Any = None) -> Any:
    """Return the value at a key, or at keys joined by dots (`train.loss`), of a row; the whole key goes first."""
    if isinstance(row, dict) and path in row:
        return row[path]
    head, dot, rest = path.partition(".")
    if dot and isinstance(row, dict) and head in row:
        return _get_by_path(row[head], rest, missing)
    return missing
