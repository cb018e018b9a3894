"""Lines that look bad and are not: a job's own, and those that the fix catalogue knows."""

from __future__ import annotations

from collections.abc import Sequence

from rlbox.job.gate_plan import BenignPlan
from rlbox.logs.lines import block_of, views
from rlbox.logs.patterns import compile_pattern


class BenignFilter:
    """Says whether a line of a log is benign; one with a marker is so only behind the marker's first line.

    Markers are found by `take`, or told by `mark` by whoever searches the logs already.
    """

    def __init__(self, rules: Sequence[BenignPlan]) -> None:
        self._rules = rules
        self._marks: dict[tuple[str, str], int] = {}

    @property
    def markers(self) -> tuple[tuple[str, str], ...]:
        """Log (empty: every one) and pattern of the markers that rules wait for."""
        return tuple(dict.fromkeys((rule.log, rule.after) for rule in self._rules if rule.after))

    def mark(self, log: str, pattern: str, number: int) -> None:
        """Record that a line of `log` fitted a marker; the first one counts."""
        self._marks.setdefault((log, pattern), number)

    def take(self, log: str, first: int, texts: Sequence[str]) -> None:
        """Look for markers in lines of a log, the first of which has the number `first`."""
        for wanted, pattern in self.markers:
            if wanted in ("", log) and (log, pattern) not in self._marks:
                fits = compile_pattern(pattern).fits
                for index, text in enumerate(block_of(texts)):
                    if any(fits(way) for way in views(text)):
                        self.mark(log, pattern, first + index)
                        break

    def excuses(self, log: str, number: int, text: str) -> bool:
        """Return whether line `number` of `log` is benign; its markers must have been taken before."""
        return self.excuse(log, number, text) is not None

    def excuse(self, log: str, number: int, text: str) -> BenignPlan | None:
        """Return the rule by which a line is benign, or None."""
        ways = views(text)
        for rule in self._rules:
            if rule.log not in ("", log) or not self.is_due(rule, log, number):
                continue
            if any(compile_pattern(rule.pattern).fits(way) for way in ways):
                return rule
        return None

    def is_due(self, rule: BenignPlan, log: str, number: int) -> bool:
        """Return whether the marker of a rule, if it has one, came before line `number` of `log`."""
        marked = self._marks.get((log, rule.after), 0)
        return not rule.after or 0 < marked < number
