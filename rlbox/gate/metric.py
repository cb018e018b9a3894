"""Conditions on the numbers that a stage tells: finite, within limits, falling, enough of them."""

from __future__ import annotations

import math
import re
from typing import Any

from rlbox.foreign import decimal, parse_json
from rlbox.job.gate_plan import MetricPlan

_NOT_FINITE = re.compile(r"(?i)[+-]?(?:nan|inf(?:inity)?)(?![a-z])")
_WRAPPED = re.compile(r"^(?:[A-Za-z_][A-Za-z0-9_.]*\(\[*)+")
"""What Python puts before a number of another kind than its own: `tensor(`, `np.float32(`, `array([`."""
_BUCKETS = 999
"""Points that are kept one by one; of more, neighbours are averaged, so that memory stays flat."""


class MetricChecker:
    """One metric rule. `problem` tells what broke it as soon as that is certain, `told` what is known so far."""

    def __init__(self, plan: MetricPlan) -> None:
        self.plan = plan
        self.problem = ""
        self.points = 0
        self._trend = _Trend()
        self._trend_done = not plan.trend
        self._first_step = 0.0
        self._step = -math.inf
        self._value = math.nan
        self._garbled = ""

    @property
    def told(self) -> str:
        if not self.points:
            return f"no point yet, only {self._garbled!r}" if self._garbled else ""
        return f"{self.points} points, the last: {self._value:g}{self._at()}"

    def take_groups(self, groups: dict[str, str | None]) -> None:
        text, step = groups.get("value") or "", groups.get("step")
        value = parse_number(text)
        if value is None:
            self._garbled = text[:80]  # a line torn by another process: no point, and no proof either
            return
        self.take(value, parse_number(step) if step else None)

    def take_row(self, text: str) -> None:
        if not text.strip():
            return
        try:
            row = parse_json(text)
        except ValueError:
            self._break(f"a row of {self.plan.file} is no JSON: {text[:80]}")
            return
        if not isinstance(row, dict) or any(get_by_path(row, k) != v for k, v in self.plan.where.items()):
            return
        value = get_by_path(row, self.plan.key, missing=_MISSING)
        if value is _MISSING:
            return
        number = math.nan if value is None else parse_number(value)  # null is how strict writers put NaN
        if number is None:
            self._break(f"{self.plan.key} is no number: {str(value)[:80]}")
            return
        self.take(number, parse_number(get_by_path(row, self.plan.step_key)))

    def take(self, value: float, step: float | None) -> None:
        """Take the next point; without a step, points are counted from 1."""
        if step is None or not math.isfinite(step):
            step = float(self.points + 1)
        if not self.points:
            self._first_step = step
        self.points += 1
        before, self._step, self._value = self._step, step, value
        if self.plan.finite and not math.isfinite(value):
            self._break(f"is {value}{self._at()}")
        elif self.plan.steps_rise and step <= before:
            self._break(f"step {step:g} came after step {before:g}")
        elif self.plan.when == "always" and (problem := self._beyond()):
            self._break(problem)
        self._take_trend(step, value)

    def end(self) -> None:
        if not self.points:
            seen = f"; {self._garbled!r} is no number" if self._garbled else ""
            self._break(f"has no point{seen}")
        elif self.points < self.plan.points:
            self._break(f"has {self.points} points, at least {self.plan.points} are due")
        else:
            self._end_trend()
            if problem := self._beyond():
                self._break(problem)

    def _take_trend(self, step: float, value: float) -> None:
        if self._trend_done:
            return
        if self.plan.within_steps is not None and step >= self._first_step + self.plan.within_steps:
            self._end_trend()
        elif math.isfinite(value):
            self._trend.take(value)

    def _end_trend(self) -> None:
        if self._trend_done:
            return
        self._trend_done = True
        over = f"the first {self.plan.within_steps} steps" if self.plan.within_steps else f"{self.points} points"
        ends = self._trend.ends()
        if ends is None:
            self._break(f"has fewer than two points in {over}")
            return
        first, last = ends
        gain = first - last if self.plan.trend == "falls" else last - first
        if gain <= self.plan.by:
            verb = "fall" if self.plan.trend == "falls" else "rise"
            by = f" by more than {self.plan.by:g}" if self.plan.by else ""
            self._break(f"did not {verb}{by} in {over}: {first:.4g} at first, {last:.4g} at last")

    def _beyond(self) -> str:
        if self.plan.at_least is not None and not self._value >= self.plan.at_least:
            return f"is {self._value:g}{self._at()}, at least {self.plan.at_least:g} is due"
        if self.plan.at_most is not None and not self._value <= self.plan.at_most:
            return f"is {self._value:g}{self._at()}, at most {self.plan.at_most:g} is allowed"
        return ""

    def _break(self, problem: str) -> None:
        self.problem = self.problem or f"{self.plan.name} {problem}"

    def _at(self) -> str:
        return f" at step {self._step:g}"


class _Trend:
    """The means of the first and the last third of many points, in flat memory."""

    def __init__(self) -> None:
        self._sums: list[float] = []
        self._wide = 1
        self._part = 0.0
        self._parts = 0

    def take(self, value: float) -> None:
        self._part += value
        self._parts += 1
        if self._parts == self._wide:
            self._sums.append(self._part)
            self._part, self._parts = 0.0, 0
        if len(self._sums) > _BUCKETS:
            pairs = zip(self._sums[::2], self._sums[1::2], strict=True)
            self._sums, self._wide = [a + b for a, b in pairs], self._wide * 2

    def ends(self) -> tuple[float, float] | None:
        """Return both means, None when there are fewer than two points."""
        count = len(self._sums)
        if count < 2:
            return None
        third = max(1, count // 3)
        weight = third * self._wide
        return sum(self._sums[:third]) / weight, sum(self._sums[-third:]) / weight


_MISSING = object()


def parse_number(value: Any) -> float | None:
    """Return a number as a log or a row writes it (`2.5`, `1e-05,`, `nan`, `tensor(2.5)`, `np.float32(1)`), or None."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str):
        return None
    text = value.strip().strip("'\"[](){},;:|")
    for way in (text, bare := _WRAPPED.sub("", text)):
        if found := _NOT_FINITE.match(way):
            return float(found.group())
    return decimal(bare.rstrip(".%)],"))


def get_by_path(row: Any, path: str, missing: Any = None) -> Any:
    """Return the value at a key, or at keys joined by dots (`train.loss`), of a row; the whole key goes first."""
    if isinstance(row, dict) and path in row:
        return row[path]
    head, dot, rest = path.partition(".")
    if dot and isinstance(row, dict) and head in row:
        return get_by_path(row[head], rest, missing)
    return missing
