"""The gate of one stage with its placeholders filled in: what `plan.json` holds of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlbox.job.filler import PlaceholderFiller
from rlbox.job.gate_spec import BenignRule, FileRule, ForbidRule, Gate, MetricRule, ModelText, Probe, RequireRule
from rlbox.job.job import Ready
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
    always: bool = False


@dataclass(frozen=True, kw_only=True)
class BenignPlan:
    """A line that looks bad and is not; an empty `log` stands for every log, `known` is the fix that says so."""

    pattern: str
    log: str = ""
    after: str = ""
    why: str = ""
    known: str = ""


@dataclass(frozen=True, kw_only=True)
class SpanPlan:
    """A text that a model wrote: from the line that fits `begins` to before the one that fits `ends`."""

    begins: str
    ends: str


@dataclass(frozen=True, kw_only=True)
class FilePlan:
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
    require: tuple[LinePlan, ...] = ()
    ordered: bool = False
    forbid: tuple[LinePlan, ...] = ()
    benign: tuple[BenignPlan, ...] = ()
    model_output: tuple[str, ...] = ()
    model_texts: tuple[SpanPlan, ...] = ()
    exit_codes: tuple[int, ...] = (0,)
    files: tuple[FilePlan, ...] = ()
    metrics: tuple[MetricPlan, ...] = ()
    probes: tuple[ProbePlan, ...] = ()


def plan_gate(where: str, gate: Gate, fill: PlaceholderFiller) -> GatePlan:
    """Return the rules of `gate` filled in; `where` is the path of the gate in the job."""
    return GatePlan(
        require=tuple(_plan_line(f"{where}.require", rule, fill) for rule in gate.require),
        ordered=gate.ordered,
        forbid=tuple(_plan_line(f"{where}.forbid", rule, fill) for rule in gate.forbid),
        benign=tuple(BenignPlan(**_line(f"{where}.benign", rule, fill)) for rule in gate.benign),
        model_output=tuple(fill.pattern(f"{where}.model_output", text) for text in gate.model_output),
        model_texts=tuple(_plan_span(f"{where}.model_texts", span, fill) for span in gate.model_texts),
        exit_codes=gate.exit_codes,
        files=plan_files(f"{where}.files", gate.files, fill),
        metrics=tuple(_plan_metric(f"{where}.metrics", rule, fill) for rule in gate.metrics),
        probes=tuple(ProbePlan(**_request(f"{where}.probes", rule, fill)) for rule in gate.probes),
    )


def _plan_line(where: str, rule: RequireRule | ForbidRule, fill: PlaceholderFiller) -> LinePlan:
    until = {"until": fill.pattern(where, rule.until)} if isinstance(rule, ForbidRule) else {}
    return LinePlan(**{"count": 1, **_line(where, rule, fill), **until})


def _plan_span(where: str, rule: ModelText, fill: PlaceholderFiller) -> SpanPlan:
    return SpanPlan(begins=fill.pattern(where, rule.begins), ends=fill.pattern(where, rule.ends))


def _line(where: str, rule: RequireRule | ForbidRule | BenignRule, fill: PlaceholderFiller) -> dict[str, Any]:
    markers = {key: fill.pattern(where, text) for key, text in (("pattern", rule.pattern), ("after", rule.after))}
    return {**rule.model_dump(), **markers}


def plan_files(where: str, rules: Iterable[FileRule], fill: PlaceholderFiller) -> tuple[FilePlan, ...]:
    return tuple(FilePlan(**{**rule.model_dump(), "path": fill.text(where, rule.path)}) for rule in rules)


def _plan_metric(where: str, rule: MetricRule, fill: PlaceholderFiller) -> MetricPlan:
    filled = {"pattern": fill.pattern(where, rule.pattern), "file": fill.text(where, rule.file) if rule.key else ""}
    return MetricPlan(**{**rule.model_dump(), **filled})


def plan_ready(where: str, rule: Ready, ports: Mapping[str, int], fill: PlaceholderFiller) -> ReadyPlan:
    """Return what proves that a service does its work, filled in; `ports` maps names to numbers."""
    line = fill.pattern(f"{where}.line", rule.line)
    return ReadyPlan(**{**_request(where, rule, fill), "line": line, "port": ports.get(rule.port, 0)})


def _request(where: str, rule: Probe, fill: PlaceholderFiller) -> dict[str, Any]:
    texts = {key: fill.text(f"{where}.{key}", getattr(rule, key)) for key in ("url", "body", "contains")}
    return {**rule.model_dump(), **texts}
