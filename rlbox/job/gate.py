"""The gate: what a stage must have shown before the next one may start. The schema of `[stages.gate]`.

Every rule with an example: docs/gates.md. Patterns are RE2 (`rlbox.spec.pattern`); they are looked for anywhere in a
line, colours removed, also behind Ray's `(Actor pid=…)` and a progress bar.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from rlbox.job.gate_check import contradictions, file_problems, metric_problems, probe_problems
from rlbox.job.param import Value
from rlbox.spec.check import Problems
from rlbox.spec.kinds import Frozen
from rlbox.spec.pattern import PatternText, check_pattern
from rlbox.spec.units import Seconds

Word = Annotated[str, StringConstraints(min_length=1)]
Count = Annotated[int, Field(ge=1)]


class _Lines(Frozen):
    pattern: PatternText
    log: Word = Field("stage", description="'stage', or the name of a service")
    after: str = Field("", description="pattern: only lines behind the first one that fits it count")
    why: str = ""

    @field_validator("after")
    @classmethod
    def _after_fits(cls, value: str) -> str:
        return check_pattern(value) if value else value


class RequireRule(_Lines):
    """A line that a log must hold."""

    count: Count = Field(1, description="how many lines must fit at least")
    at_most: Count | None = Field(None, description="how many may fit; one more stops the stage")
    within_s: Seconds | None = Field(None, description="limit since the command was started, seconds")

    @field_validator("count", mode="before")
    @classmethod
    def _asks_for_something(cls, value: object) -> object:
        if value == 0 and not isinstance(value, bool):
            raise ValueError("0 lines ask for nothing; a line that must not come is a rule of `forbid`")
        return value


class ForbidRule(_Lines):
    """A line that a log must not hold: the stage is stopped there."""

    until: str = Field("", description="pattern: lines behind the first one that fits it are no longer forbidden")

    @field_validator("until")
    @classmethod
    def _until_fits(cls, value: str) -> str:
        return check_pattern(value) if value else value


class BenignRule(_Lines):
    """A line that looks bad and is not: it breaks no `forbid` rule and is never taken for the first fatal line.

    With `after` it is benign only behind that marker; before it, it counts as what it is.
    """


class FileRule(Frozen):
    """A path that must exist and be complete; with `*`, `?` or `[` in it, every file that fits must be."""

    path: Word
    min_bytes: Annotated[int, Field(ge=0)] = 1
    manifest: bool = Field(False, description="the path is a JSON manifest: every file it lists is compared by sha256")
    format: Literal["", "json", "jsonl", "safetensors"] = Field("", description="whole JSON, JSON lines or safetensors")
    count: Count = Field(1, description="how many files must fit the path, when it holds * ? or [")
    newer: bool = Field(False, description="written since the stage began, not left by an earlier one")
    settled_s: Annotated[float, Field(ge=0)] = Field(0.0, description="it must not grow for this long, seconds")
    why: str = ""

    @model_validator(mode="after")
    def _makes_sense(self) -> FileRule:
        _raise(file_problems(self))
        return self


class MetricRule(Frozen):
    """A condition on numbers that a stage tells: in a log (`pattern`) or in a file of JSON lines (`key`)."""

    name: Word
    pattern: str = Field("", description="with a group (?P<value>…) and, where there is one, (?P<step>…)")
    log: Word = Field("stage", description="'stage', or the name of a service")
    key: str = Field("", description="key of a row of `file`; dots lead into tables: train.loss")
    step_key: str = Field("step", description="key of the step in the same row")
    where: dict[Word, Value] = Field(default_factory=dict, description="keys that a row must have with these values")
    file: Word = Field("{run}/metrics.jsonl", description="JSON lines; only rows written since the stage began count")
    trend: Literal["", "falls", "rises"] = Field("", description="last third of the points against the first third")
    within_steps: Annotated[int, Field(ge=2)] | None = Field(None, description="judged over the first so many steps")
    by: Annotated[float, Field(ge=0)] = Field(0.0, description="how far it must fall or rise, more than")
    at_least: float | None = None
    at_most: float | None = None
    when: Literal["end", "always"] = Field("end", description="limits hold for the last value, or for every one")
    finite: bool = Field(True, description="NaN and infinity stop the stage")
    steps_rise: bool = Field(False, description="each step is greater than the one before")
    points: Count = Field(1, description="how many points there must be at least")
    why: str = ""

    @field_validator("pattern")
    @classmethod
    def _pattern_fits(cls, value: str) -> str:
        return check_pattern(value) if value else value

    @model_validator(mode="after")
    def _makes_sense(self) -> MetricRule:
        _raise(metric_problems(self))
        return self


class Probe(Frozen):
    """A request that shows that something does its work, and what its answer must be.

    An answer that is a JSON object with an error in it never passes, whatever its status.
    """

    url: Word
    method: Literal["GET", "POST"] = "GET"
    body: str = Field("", description="JSON text sent with POST")
    status: Annotated[int, Field(ge=100, le=599)] = 200
    contains: str = Field("", description="text that the answer must hold")
    json_path: str = Field("", description="value of the JSON answer that must not be empty: choices[0].text")
    equals: Value | None = Field(None, description="what the value at json_path must be")

    @model_validator(mode="after")
    def _makes_sense(self) -> Probe:
        _raise(probe_problems(self))
        return self


class ProbeRule(Probe):
    """A request made when the command has ended well, while its services still run."""

    within_s: Seconds = Field(30.0, description="limit for the right answer, seconds")
    why: str = ""


class Gate(Frozen):
    """What a stage must have shown before the next one may start."""

    require: tuple[RequireRule, ...] = ()
    ordered: bool = Field(False, description="the first lines of `require` come in the listed order, log by log")
    forbid: tuple[ForbidRule, ...] = ()
    benign: tuple[BenignRule, ...] = ()
    exit_codes: tuple[Annotated[int, Field(ge=0, le=255)], ...] = Field(
        (0,), min_length=1, description="exit codes of the command that are good"
    )
    files: tuple[FileRule, ...] = ()
    metrics: tuple[MetricRule, ...] = ()
    probes: tuple[ProbeRule, ...] = ()

    @model_validator(mode="after")
    def _makes_sense(self) -> Gate:
        _raise(contradictions(self))
        return self


def _raise(problems: list[str]) -> None:
    if problems:
        raise Problems(problems)
