"""The gate of a stage: rules that wait, hold or break as log lines and facts come in. No clock, no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from rlbox.plan.lines import Line, LineCutter, bare_text, repeats
from rlbox.plan.run import LinePlan, StagePlan

RuleKind = Literal["need", "port", "service", "require", "forbid", "exit", "ray", "file", "silence", "total"]
RuleStatus = Literal["waiting", "held", "broken"]

STAGE_LOG = "stage"
_SEEN_LIMIT = 500
_AT_END: frozenset[RuleKind] = frozenset({"forbid", "silence", "total"})


@dataclass(frozen=True, kw_only=True)
class RuleState:
    """One rule of a gate: what it asks (`rule`), and the line or fact that decided it (`seen`)."""

    kind: RuleKind
    rule: str
    state: RuleStatus = "waiting"
    seen: str = ""
    count: int = 0


@dataclass(frozen=True, kw_only=True)
class FileFact:
    """What was found at a path; `problem` is empty when it is there and whole."""

    bytes: int | None = None
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A forbidden line that was met: rule, line number and text."""

    rule: LinePlan
    line: Line


@dataclass
class _Rule:
    kind: RuleKind
    text: str
    line: LinePlan | None = None
    pattern: re.Pattern[str] | None = None
    state: RuleStatus = "waiting"
    seen: str = ""
    count: int = 0

    def hits(self, texts: list[str], bare: dict[int, str]) -> list[int]:
        """Return which lines match, as written or (`bare`, by index) without what Ray puts around them."""
        if self.pattern is None:
            return []
        search = self.pattern.search
        found = [index for index, text in enumerate(texts) if search(text)]
        if bare:
            found = sorted({*found, *(index for index, text in bare.items() if search(text))})
        return found


@dataclass
class _Log:
    rules: list[_Rule]
    cutter: LineCutter = field(default_factory=LineCutter)
    last: str = ""


class Gate:
    """The rules of one stage and their states.

    Rules are named by kind and text; the texts are those of `states`. `revision` grows with every change of a state,
    so that a caller can tell cheaply whether there is something new to record.
    """

    def __init__(self, stage: StagePlan) -> None:
        self._rules = _stage_rules(stage)
        names = (STAGE_LOG, *(service.name for service in stage.services))
        self._logs = {name: _Log([r for r in self._rules if r.line and r.line.log == name]) for name in names}
        self._stopping = False
        self.revision = 0
        self.forbidden: list[Broken] = []

    def feed(self, log: str, data: bytes) -> None:
        """Take the next bytes of a log: `stage`, or the name of a service."""
        self._take(self._logs[log], self._logs[log].cutter.feed(data))

    def close_logs(self) -> None:
        """Count the last lines of all logs, also those without a line feed."""
        for log in self._logs.values():
            self._take(log, log.cutter.close())

    def begin_stop(self) -> None:
        """From here on forbidden lines break nothing: what is being stopped may complain about it."""
        self._stopping = True

    def last_line(self, log: str) -> str:
        """Return the last line of a log that is not blank, or an empty text."""
        return self._logs[log].last

    def hold(self, kind: RuleKind, text: str, seen: str = "") -> None:
        """Record that a rule is fulfilled."""
        self._decide(self._find(kind, text), "held", seen)

    def refuse(self, kind: RuleKind, text: str, seen: str) -> None:
        """Record that a rule is broken."""
        self._decide(self._find(kind, text), "broken", seen)

    def end(self) -> None:
        """Decide what only the end of a stage that exited 0 can: lines that never came, limits that were kept."""
        for rule in self._rules:
            if rule.state == "waiting" and rule.kind in _AT_END:
                self._decide(rule, "held", "")
            elif rule.state == "waiting" and rule.kind == "require" and rule.line:
                self._decide(rule, "broken", self.last_line(rule.line.log))

    def missing_lines(self) -> list[tuple[LinePlan, int]]:
        """Return the line rules that do not hold yet, each with the number of lines that matched."""
        return [(r.line, r.count) for r in self._rules if r.kind == "require" and r.line and r.state != "held"]

    def states(self) -> tuple[RuleState, ...]:
        """Return all rules in the order in which a stage meets them."""
        return tuple(
            RuleState(kind=rule.kind, rule=rule.text, state=rule.state, seen=rule.seen, count=rule.count)
            for rule in self._rules
        )

    def _take(self, log: _Log, texts: list[str]) -> None:
        first = log.cutter.number - len(texts) + 1
        bare = {i: bare_text(text) for i, text in enumerate(texts) if "pid=" in text or "[repeated " in text}
        for rule in log.rules:
            for index in rule.hits(texts, bare):
                self._count(rule, Line(number=first + index, text=texts[index].strip()))
        log.last = next((text.strip()[:_SEEN_LIMIT] for text in reversed(texts) if text.strip()), log.last)

    def _count(self, rule: _Rule, line: Line) -> None:
        if rule.line is None or (rule.kind == "forbid" and self._stopping):
            return
        rule.count += repeats(line.text)
        if rule.kind == "forbid":
            if rule.state != "broken":
                self.forbidden.append(Broken(rule=rule.line, line=line))
            self._decide(rule, "broken", line.text)
        elif rule.state == "waiting":
            rule.seen = line.text[:_SEEN_LIMIT]
            self.revision += 1
            if rule.count >= rule.line.count:
                self._decide(rule, "held", line.text)

    def _decide(self, rule: _Rule, state: RuleStatus, seen: str) -> None:
        if rule.state == "broken" or (rule.state, rule.seen) == (state, seen):
            return
        rule.state = state
        rule.seen = seen[:_SEEN_LIMIT]
        self.revision += 1

    def _find(self, kind: RuleKind, text: str) -> _Rule:
        return next(rule for rule in self._rules if rule.kind == kind and rule.text == text)


def rule_text(rule: LinePlan) -> str:
    """Return how a line rule is shown: its pattern, with the log when it is not the stage's own, and the count."""
    where = "" if rule.log == STAGE_LOG else f"{rule.log}: "
    often = f" (at least {rule.count})" if rule.count > 1 else ""
    return f"{where}{rule.pattern}{often}"


def port_text(name: str, number: int) -> str:
    """Return how the rule that a port be free is shown."""
    return f"{name} {number}"


EXIT_RULE = "exit code 0"
RAY_RULE = "job SUCCEEDED"


def silence_text(stage: StagePlan) -> str:
    """Return how the silence limit is shown."""
    return f"at most {stage.silence_s:g} s"


def total_text(stage: StagePlan) -> str:
    """Return how the total limit is shown."""
    return f"at most {stage.total_s:g} s"


def _stage_rules(stage: StagePlan) -> list[_Rule]:
    rules = [_Rule("need", need.path) for need in stage.needs]
    for service in stage.services:
        rules += [_Rule("port", port_text(name, number)) for name, number in service.ports.items()]
    rules += [_Rule("service", service.name) for service in stage.services]
    rules += [_Rule("require", rule_text(rule), rule, re.compile(rule.pattern)) for rule in stage.require]
    rules += [_Rule("forbid", rule_text(rule), rule, re.compile(rule.pattern)) for rule in stage.forbid]
    rules.append(_Rule("exit", EXIT_RULE))
    if stage.ray:
        rules.append(_Rule("ray", RAY_RULE))
    rules += [_Rule("file", file.path) for file in stage.files]
    return [*rules, _Rule("silence", silence_text(stage)), _Rule("total", total_text(stage))]
