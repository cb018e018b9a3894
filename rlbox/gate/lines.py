"""The line rules of a gate: required, forbidden, benign, with their markers and their order.

Benign lines look bad and are not: a job's own, and those that the fix catalogue knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rlbox.amounts import limit_text
from rlbox.diagnose.lines import find_writer
from rlbox.gate.log_context import LineMatcher, ModelTextFilter, StepTracker
from rlbox.gate.rules import ForbiddenLine, GateRule, RuleKind, Violation, format_benign_rule, format_line_rule
from rlbox.job.gate_plan import BenignPlan, LinePlan
from rlbox.logs.lines import Line, count_ray_repeats, find_ray_actor, list_line_variants, strip_ray_prefix
from rlbox.logs.patterns import compile_pattern

_ECHO = re.compile(r"\+{1,9} \S|(?:\S+\s+){0,8}Running entrypoint for job \S+: ")
"""What a shell (`set -x`) or Ray says that it starts: the words of a command, which has done nothing yet."""
_ACTORS = 256
"""Names of Ray's actors and tasks that one rule remembers."""


@dataclass
class RuleEvents:
    """What the rules of one gate tell: `revision` grows with every change of a state.

    `noted` are forbidden lines whose lane went on making steps.
    """

    revision: int = 0
    stopping: bool = False
    forbidden: list[ForbiddenLine] = field(default_factory=list)
    noted: list[ForbiddenLine] = field(default_factory=list)
    breaches: list[Violation] = field(default_factory=list)

    def breach(
        self, rule: GateRule, log: str, problem: str, *, line: Line | None = None, reason: str = "", late: bool = False
    ) -> None:
        """Record that a rule is broken for good; after the stop nothing is."""
        if self.stopping or rule.state == "broken":
            return
        rule.decide("broken", f"{problem}: {line.text}" if line else problem)
        self.revision += 1
        self.breaches.append(
            Violation(kind=rule.kind, rule=rule.text, log=log, problem=problem, line=line, why=reason, late=late)
        )


class _Marker:
    """The first line that fits a pattern; `number` 0: none yet."""

    def __init__(self, pattern: str) -> None:
        self.number = 0
        self.watcher = LineMatcher(pattern, self._meet)

    def _meet(self, line: Line, way: str) -> None:
        self.number = self.number or line.number
        self.watcher.done = True


@dataclass(frozen=True)
class _Doubt:
    """A forbidden line of a lane that has made steps, or in a text that a model may have written.

    It counts when no step follows until `due_s`, or the text finds no end.
    """

    line: Line
    due_s: float
    quoted: bool = False


class LineRule(GateRule):
    """A required or forbidden line of one log.

    `quotes` is what a model wrote there; `steps` are those of the log, where lanes are to be told apart.
    """

    def __init__(
        self,
        kind: RuleKind,
        plan: LinePlan,
        board: RuleEvents,
        benign: BenignRules,
        quotes: ModelTextFilter,
        steps: StepTracker | None,
    ) -> None:
        super().__init__(kind, format_line_rule(plan))
        self.plan = plan
        self.before: LineRule | None = None
        self._board = board
        self._benign = benign
        self._quotes = quotes
        self._steps = steps
        self._doubts: dict[tuple[str, bool], _Doubt] = {}
        self._after = _Marker(plan.after) if plan.after else None
        self._until = _Marker(plan.until) if plan.until else None
        self._watcher = LineMatcher(plan.pattern, self._meet, rewritten=kind == "forbid", whole=kind == "forbid")
        self._told: set[str] = set()

    def watchers(self) -> Iterator[LineMatcher]:
        yield self._watcher
        yield from (marker.watcher for marker in (self._after, self._until) if marker)

    @property
    def in_doubt(self) -> bool:
        """Whether steps or the end of a text may still excuse a forbidden line."""
        return bool(self._doubts)

    def pass_time(self, elapsed_s: float) -> None:
        """Break a required line that did not come in time."""
        limit = self.plan.within_s
        if limit is not None and self.state == "waiting" and elapsed_s > limit:
            seen = f"{self.count} of {self.plan.count} lines" if self.plan.count > 1 else "no such line"
            self._board.breach(
                self, self.plan.log, f"{seen} within {limit_text(limit)}", reason=self.plan.why, late=True
            )

    def settle(self, *, over: bool = False) -> None:
        """Decide on forbidden lines in doubt: those of a text that ended are gone, of a lane that made a step noted.

        With `over` nothing more can come: those that are left count.
        """
        for name, doubt in list(self._doubts.items()):
            line = doubt.line
            if self._quotes.holds(line.number, line.text):
                del self._doubts[name]
            elif doubt.quoted and not over and self._quotes.is_open(line):
                continue
            elif self._steps and not doubt.quoted and self._steps.since(line.text, line.number):
                self._note(self._doubts.pop(name).line)
            elif over or doubt.quoted or (self._steps and self._steps.elapsed_s > doubt.due_s):
                self._break(self._doubts.pop(name).line)

    def _meet(self, line: Line, way: str) -> None:
        if self._after and not 0 < self._after.number < line.number:
            return
        if self.kind == "forbid":
            self._forbid(line)
        else:
            self._require(line)

    def _forbid(self, line: Line) -> None:
        ended = self._until is not None and 0 < self._until.number < line.number
        if self._board.stopping or ended or self._benign.is_benign(self.plan.log, line.number, line.text):
            return
        self.count += self._lines_of(line)
        quoted = self._quotes.is_open(line)
        patience_s = self._steps.patience_s(line.text) if self._steps and not self._steps.is_step(line) else 0.0
        self.settle()
        if not quoted and not patience_s:
            self._break(line)
            return
        due_s = self._steps.elapsed_s + patience_s if self._steps else 0.0
        self._doubts.setdefault((find_writer(line.text), quoted), _Doubt(line, due_s, quoted))

    def _break(self, line: Line) -> None:
        if self.state != "broken":
            self._board.forbidden.append(ForbiddenLine(rule=self.plan, line=line))
        self._board.revision += self.decide("broken", line.text)

    def _note(self, line: Line) -> None:
        self._board.noted.append(ForbiddenLine(rule=self.plan, line=line))
        self._board.revision += self.decide("waiting", line.text)

    def _require(self, line: Line) -> None:
        if self.state == "broken" or is_command_echo(line.text, self.plan.pattern):
            return
        if self.before and not self.before.count:
            self._board.breach(
                self, self.plan.log, f"came before {self.before.plan.pattern}", line=line, reason=self.plan.why
            )
            return
        self.count += self._lines_of(line)
        if self.state == "waiting":
            self.seen = line.text[:500]
            self._board.revision += 1
            if self.count >= self.plan.count:
                self.decide("held", line.text)
        if self.plan.at_most is None:
            self._watcher.done = self.state == "held"
        elif self.count > self.plan.at_most:
            problem = f"{self.count} lines, at most {self.plan.at_most} are allowed"
            self._board.breach(self, self.plan.log, problem, line=line, reason=self.plan.why)

    def _lines_of(self, line: Line) -> int:
        """Return how many lines one stands for.

        Ray's driver prints the first of many alike whole, and 5 s later one for all others of that actor's name. What
        ends like that without a first one before it is a text that quotes such a line.
        """
        actor, others = find_ray_actor(line.text), count_ray_repeats(line.text)
        if others:
            return others if actor in self._told else 1
        if actor and len(self._told) < _ACTORS:
            self._told.add(actor)
        return 1


def is_command_echo(text: str, pattern: str) -> bool:
    """Whether a line repeats a command that is started, and the pattern does not ask for such a line itself."""
    return _ECHO.match(strip_ray_prefix(text)) is not None and r"\+" not in pattern and "entrypoint" not in pattern


class BenignRules:
    """The benign lines of a stage: what excuses forbidden lines, and notes of those that came.

    A line with a marker is benign only behind the marker's first line.
    """

    def __init__(self, plans: Sequence[BenignPlan], board: RuleEvents) -> None:
        self._marks: dict[tuple[str, str], int] = {}
        self._board = board
        self._plans = {id(rule): rule for rule in plans}
        self._notes = {key: GateRule("benign", format_benign_rule(rule)) for key, rule in self._plans.items()}

    def rules(self) -> list[GateRule]:
        return [note for key, note in self._notes.items() if not self._plans[key].known or note.count]

    def watchers(self, log: str) -> Iterator[LineMatcher]:
        for key, plan in self._plans.items():
            if plan.log in ("", log):
                yield self._note(log, key)
        for pattern in dict.fromkeys(plan.after for plan in self._plans.values() if plan.log in ("", log)):
            if pattern:
                yield self._mark(log, pattern)

    def is_benign(self, log: str, number: int, text: str) -> bool:
        ways = list_line_variants(text)
        due = (plan for plan in self._plans.values() if plan.log in ("", log) and self._is_due(plan, log, number))
        return any(compile_pattern(plan.pattern).matches(way) for plan in due for way in ways)

    def _is_due(self, plan: BenignPlan, log: str, number: int) -> bool:
        return not plan.after or 0 < self._marks.get((log, plan.after), 0) < number

    def _note(self, log: str, key: int) -> LineMatcher:
        def met(line: Line, way: str) -> None:
            if self._is_due(self._plans[key], log, line.number):
                self._notes[key].count += 1
                self._board.revision += self._notes[key].decide("held", line.text)
                watcher.done = True

        watcher = LineMatcher(self._plans[key].pattern, met)
        return watcher

    def _mark(self, log: str, pattern: str) -> LineMatcher:
        def met(line: Line, way: str) -> None:
            self._marks.setdefault((log, pattern), line.number)
            watcher.done = True

        watcher = LineMatcher(pattern, met)
        return watcher
