"""The states of a gate's rules, as `run.json` records them, and what they have found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rlbox.job.gate import ForbidRule, MetricRule, RequireRule
from rlbox.job.names import ProblemOrEmpty
from rlbox.logs.lines import Line

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
        return self.rule if self.rule.startswith(self.kind) else f"{self.kind} {self.rule}"


@dataclass(frozen=True, kw_only=True)
class ForbiddenLine:
    rule: ForbidRule
    line: Line


@dataclass(frozen=True, kw_only=True)
class Violation:
    rule: RequireRule | MetricRule
    problem: ProblemOrEmpty
    line: Line | None = None
    timed_out: bool = False


@dataclass
class GateEvents:
    """What the rules of one gate report: `revision` grows with every change of a state.

    `warnings` are forbidden lines of a process that went on making steps. Once the stage `is_stopping` nothing that
    comes breaks a rule.
    """

    revision: int = 0
    is_stopping: bool = False
    forbidden: list[ForbiddenLine] = field(default_factory=list)
    warnings: list[ForbiddenLine] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)

    def set_unless_broken(self, state: RuleState, status: RuleStatus, evidence: str) -> None:
        """Set a state; a broken rule does not heal."""
        if state.state != "broken" and (state.state, state.seen) != (status, evidence[:_SEEN_LIMIT]):
            state.state, state.seen = status, evidence[:_SEEN_LIMIT]
            self.revision += 1

    def add_violation_unless_stopping(self, state: RuleState, violation: Violation) -> None:
        if self.is_stopping or state.state == "broken":
            return
        line = violation.line
        self.set_unless_broken(state, "broken", f"{violation.problem}: {line.text}" if line else violation.problem)
        self.violations.append(violation)
