"""The rules of a gate as values: what kinds there are, how each is shown, and the state that it is in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from rlbox.amounts import limit_text
from rlbox.job.gate_plan import BenignPlan, LinePlan, MetricPlan, ReadyPlan
from rlbox.job.names import STAGE_LOG
from rlbox.job.plan import StagePlan
from rlbox.logs.lines import Line

RuleKind = Literal[
    "need",
    "port",
    "service",
    "require",
    "forbid",
    "benign",
    "metric",
    "exit",
    "ray",
    "probe",
    "listens",
    "file",
    "silence",
    "total",
]
RuleStatus = Literal["waiting", "held", "broken"]

SEEN_LIMIT = 500
_OF_RLBOX: frozenset[RuleKind] = frozenset({"exit", "ray", "listens", "silence", "total"})
"""Rules in which nothing stands that the job wrote."""
_CONDITIONS = re.compile(
    r" \((?:(?:at (?:least|most) \d+|within [^,()]+|written by the stage|json|jsonl|safetensors)(?:, |(?=\)$)))+\)$"
)
AT_END: frozenset[RuleKind] = frozenset({"forbid", "benign", "listens", "silence", "total"})
"""Rules that hold when the end of a stage finds them unbroken."""


@dataclass(frozen=True, kw_only=True)
class RuleState:
    """One rule of a gate: what it asks (`rule`), and the line or fact that decided it (`seen`)."""

    kind: RuleKind
    rule: str
    state: RuleStatus = "waiting"
    seen: str = ""
    count: int = 0

    @property
    def named(self) -> str:
        """The rule with its kind before it, where it does not begin with that word itself."""
        return self.rule if self.rule.startswith(self.kind) else f"{self.kind} {self.rule}"


@dataclass(frozen=True, kw_only=True)
class ForbiddenLine:
    rule: LinePlan
    line: Line


@dataclass(frozen=True, kw_only=True)
class Violation:
    """Another rule that can no longer hold: what is wrong with it, and the line of `log` that shows it, if one does."""

    kind: RuleKind
    rule: str
    log: str
    problem: str
    line: Line | None = None
    why: str = ""
    late: bool = False


@dataclass
class GateRule:
    """A rule and where it stands."""

    kind: RuleKind
    text: str
    state: RuleStatus = "waiting"
    seen: str = ""
    count: int = 0

    def decide(self, state: RuleStatus, seen: str) -> bool:
        """Set the state; return whether that changed anything. A broken rule does not heal."""
        if self.state == "broken" or (self.state, self.seen) == (state, seen[:SEEN_LIMIT]):
            return False
        self.state, self.seen = state, seen[:SEEN_LIMIT]
        return True

    def as_state(self) -> RuleState:
        return RuleState(kind=self.kind, rule=self.text, state=self.state, seen=self.seen, count=self.count)


def format_line_rule(rule: LinePlan) -> str:
    """Return how a line rule is shown: its pattern, with the log when it is not the stage's own, and its conditions."""
    where = "" if rule.log == STAGE_LOG else f"{rule.log}: "
    conditions = []
    if rule.count > 1:
        conditions.append(f"at least {rule.count}")
    if rule.at_most is not None:
        conditions.append(f"at most {rule.at_most}")
    if rule.within_s is not None:
        conditions.append(f"within {limit_text(rule.within_s)}")
    if rule.after:
        conditions.append(f"after {rule.after}")
    if rule.until:
        conditions.append(f"until {rule.until}")
    return f"{where}{rule.pattern}" + (f" ({', '.join(conditions)})" if conditions else "")


def format_benign_rule(rule: BenignPlan) -> str:
    where = "" if rule.log in ("", STAGE_LOG) else f"{rule.log}: "
    return f"{where}{rule.pattern}" + (f" (after {rule.after})" if rule.after else "")


def format_metric_rule(rule: MetricPlan) -> str:
    conditions = []
    if rule.trend:
        often = f" within {rule.within_steps} steps" if rule.within_steps else ""
        conditions.append(f"{rule.trend}{often}" + (f" by more than {rule.by:g}" if rule.by else ""))
    at = "always" if rule.when == "always" else "at the end"
    if rule.at_least is not None:
        conditions.append(f"at least {rule.at_least:g} {at}")
    if rule.at_most is not None:
        conditions.append(f"at most {rule.at_most:g} {at}")
    if rule.steps_rise:
        conditions.append("steps rise")
    if rule.points > 1:
        conditions.append(f"{rule.points} points")
    if rule.finite:
        conditions.append("finite")
    return f"{rule.name}: {', '.join(conditions) or 'there'}"


def format_probe(rule: ReadyPlan) -> str:
    return f"{rule.method} {rule.url}"


def format_exit_rule(stage: StagePlan) -> str:
    """Return how the rule on the exit code is shown; for a Ray job it is the driver's."""
    if stage.ray:
        return "driver_exit_code 0"
    return "exit code " + " or ".join(str(code) for code in stage.exit_codes)
