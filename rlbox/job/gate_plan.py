"""The gate of one stage with its placeholders filled in: what `plan.json` holds of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlbox.job.gate import Gate
from rlbox.job.gate_rule import BenignRule, FileRule, ForbidRule, MetricRule, Probe, ProbeRule, RequireRule
from rlbox.job.param import Scalar


@dataclass(frozen=True, kw_only=True)
class LinePlan:
    """A line that must come (`require`) or must not (`forbid`); an empty `after` or `until` is no marker."""

    pattern: str
    log: str
    count: int
    why: str
    at_most: int | None = None
    within_s: float | None = None
    after: str = ""
    until: str = ""


@dataclass(frozen=True, kw_only=True)
class BenignPlan:
    """A line that looks bad and is not; an empty `log` stands for every log, `known` is the fix that says so."""

    pattern: str
    log: str = ""
    after: str = ""
    why: str = ""
    known: str = ""


@dataclass(frozen=True, kw_only=True)
class FilePlan:
    """A file that must be there and whole; `path` may hold wild cards."""

    path: str
    min_bytes: int
    manifest: bool
    why: str
    format: str = ""
    count: int = 1
    newer: bool = False
    settled_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MetricPlan:
    """A condition on numbers that a stage tells."""

    name: str
    pattern: str = ""
    log: str = "stage"
    key: str = ""
    step_key: str = "step"
    where: Mapping[str, Scalar] = field(default_factory=dict)
    file: str = ""
    trend: str = ""
    within_steps: int | None = None
    by: float = 0.0
    at_least: float | None = None
    at_most: float | None = None
    when: str = "end"
    finite: bool = True
    steps_rise: bool = False
    points: int = 1
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class ReadyPlan:
    """A request, and what its answer must be."""

    url: str
    method: str = "GET"
    body: str = ""
    contains: str = ""
    status: int = 200
    json_path: str = ""
    equals: Scalar | None = None
    line: str = ""
    port: int = 0


@dataclass(frozen=True, kw_only=True)
class ProbePlan(ReadyPlan):
    """A request made at the end of a stage; the right answer must come within `within_s`."""

    within_s: float = 30.0
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class GatePlan:
    """All rules of a gate."""

    require: tuple[LinePlan, ...] = ()
    ordered: bool = False
    forbid: tuple[LinePlan, ...] = ()
    benign: tuple[BenignPlan, ...] = ()
    exit_codes: tuple[int, ...] = (0,)
    files: tuple[FilePlan, ...] = ()
    metrics: tuple[MetricPlan, ...] = ()
    probes: tuple[ProbePlan, ...] = ()


class Fill(Protocol):
    """What replaces placeholders: `rlbox.job.filler.Filler`."""

    def text(self, where: str, text: str, quote: Callable[[str], str] = str) -> str:
        """Return `text` filled in."""

    def pattern(self, where: str, text: str) -> str:
        """Return the regular expression `text` filled in."""


def plan_gate(where: str, gate: Gate, fill: Fill) -> GatePlan:
    """Return the rules of `gate` filled in; `where` is the path of the gate in the job."""
    return GatePlan(
        require=tuple(_plan_line(f"{where}.require", rule, fill) for rule in gate.require),
        ordered=gate.ordered,
        forbid=tuple(_plan_line(f"{where}.forbid", rule, fill) for rule in gate.forbid),
        benign=tuple(_plan_benign(f"{where}.benign", rule, fill) for rule in gate.benign),
        exit_codes=gate.exit_codes,
        files=plan_files(f"{where}.files", gate.files, fill),
        metrics=tuple(_plan_metric(f"{where}.metrics", rule, fill) for rule in gate.metrics),
        probes=tuple(_plan_probe(f"{where}.probes", rule, fill) for rule in gate.probes),
    )


def _plan_line(where: str, rule: RequireRule | ForbidRule, fill: Fill) -> LinePlan:
    pattern, after = fill.pattern(where, rule.pattern), fill.pattern(where, rule.after)
    if isinstance(rule, ForbidRule):
        until = fill.pattern(where, rule.until)
        return LinePlan(pattern=pattern, log=rule.log, count=1, why=rule.why, after=after, until=until)
    return LinePlan(
        pattern=pattern,
        log=rule.log,
        count=rule.count,
        why=rule.why,
        at_most=rule.at_most,
        within_s=rule.within_s,
        after=after,
    )


def _plan_benign(where: str, rule: BenignRule, fill: Fill) -> BenignPlan:
    return BenignPlan(
        pattern=fill.pattern(where, rule.pattern), log=rule.log, after=fill.pattern(where, rule.after), why=rule.why
    )


def plan_files(where: str, rules: Iterable[FileRule], fill: Fill) -> tuple[FilePlan, ...]:
    """Return file rules filled in."""
    return tuple(FilePlan(**{**rule.model_dump(), "path": fill.text(where, rule.path)}) for rule in rules)


def _plan_metric(where: str, rule: MetricRule, fill: Fill) -> MetricPlan:
    filled = {"pattern": fill.pattern(where, rule.pattern), "file": fill.text(where, rule.file) if rule.key else ""}
    return MetricPlan(**{**rule.model_dump(), **filled})


def plan_ready(where: str, rule: Probe, fill: Fill) -> ReadyPlan:
    """Return the request of a service filled in."""
    return ReadyPlan(**_request(where, rule, fill))


def _plan_probe(where: str, rule: ProbeRule, fill: Fill) -> ProbePlan:
    return ProbePlan(**_request(where, rule, fill), within_s=rule.within_s, why=rule.why)


def _request(where: str, rule: Probe, fill: Fill) -> dict[str, Any]:
    return {
        "url": fill.text(f"{where}.url", rule.url),
        "method": rule.method,
        "body": fill.text(f"{where}.body", rule.body),
        "contains": fill.text(f"{where}.contains", rule.contains),
        "status": rule.status,
        "json_path": rule.json_path,
        "equals": rule.equals,
    }
