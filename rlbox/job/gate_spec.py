"""Schema of a gate in a job file: its rules, and conditions that nothing could fulfil or break."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from rlbox.config.pattern import check_pattern, compile_re2, tokenize_pattern
from rlbox.config.schema import OptionalPattern, PatternText, SpecModel, ValidationProblems
from rlbox.config.units import Seconds
from rlbox.i18n import _
from rlbox.job.param import Value

WILDCARD = re.compile(r"[*?\[]")
_PATH = re.compile(r"(?:[^.\[\]\s]+|\[\d+\])(?:\.[^.\[\]\s]+|\[\d+\])*")
_FOLDERS = ("{run}", "{data}", "{job}")
_NUMBERS = ("nan", "inf", "-inf", "1", "-1.5", "1e-05")
"""What a metric's value group must take: a pattern for digits alone is blind to NaN."""


NonEmptyText = Annotated[str, StringConstraints(min_length=1)]


PositiveCount = Annotated[int, Field(ge=1)]


class _Lines(SpecModel):
    pattern: PatternText
    log: NonEmptyText = Field("stage", description="'stage', or the name of a service")
    after: OptionalPattern = Field("", description="pattern: only lines behind the first one that fits it count")
    why: str = ""


class RequireRule(_Lines):
    """A line that a log must hold."""

    count: PositiveCount = Field(1, description="how many lines must fit at least")
    at_most: PositiveCount | None = Field(None, description="how many may fit; one more stops the stage")
    within_s: Seconds | None = Field(None, description="limit since the command was started, seconds")

    @field_validator("count", mode="before")
    @classmethod
    def _asks_for_something(cls, value: object) -> object:
        if value == 0 and not isinstance(value, bool):
            raise ValueError(_("0 lines ask for nothing; a line that must not come is a rule of `forbid`"))
        return value


class ForbidRule(_Lines):
    """A line that a log must not hold: the stage is stopped there.

    In the stage's own log it is noted instead where its process makes a further step: that process lives on, and has
    quoted such a line, in a sample of its model as a rule.
    """

    always: bool = Field(False, description="the stage is stopped also where its process goes on making steps")
    until: OptionalPattern = Field(
        "", description="pattern: lines behind the first one that fits it are no longer forbidden"
    )


class BenignRule(_Lines):
    """A line that looks bad and is not: it breaks no `forbid` rule and is never taken for the first fatal line.

    With `after` it is benign only behind that marker; before it, it counts as what it is.
    """


class ModelText(SpecModel):
    """A text of several lines that a model wrote, as a trainer prints it, between two lines of its own."""

    begins: PatternText
    ends: PatternText

    @model_validator(mode="after")
    def _makes_sense(self) -> ModelText:
        same = self.begins == self.ends
        raise_problems([_("ends: is the same as begins: nothing lies between")] if same else [])
        return self


class FileRule(SpecModel):
    """A path that must exist and be complete; with `*`, `?` or `[` in it, every file that fits must be."""

    path: NonEmptyText
    min_bytes: Annotated[int, Field(ge=0)] = 1
    manifest: bool = Field(False, description="the path is a JSON manifest: every file it lists is compared by sha256")
    format: Literal["", "json", "jsonl", "safetensors"] = Field("", description="whole JSON, JSON lines or safetensors")
    count: PositiveCount = Field(1, description="how many files must fit the path, when it holds * ? or [")
    newer: bool = Field(False, description="written since the stage began, not left by an earlier one")
    settled_s: Annotated[float, Field(ge=0)] = Field(0.0, description="it must not grow for this long, seconds")
    why: str = ""

    @model_validator(mode="after")
    def _makes_sense(self) -> FileRule:
        raise_problems(find_file_problems(self))
        return self


class MetricRule(SpecModel):
    """A condition on numbers that a stage tells: in a log (`pattern`) or in a file of JSON lines (`key`)."""

    name: NonEmptyText
    pattern: OptionalPattern = Field("", description="with a group (?P<value>…) and, where there is one, (?P<step>…)")
    log: NonEmptyText = Field("stage", description="'stage', or the name of a service")
    key: str = Field("", description="key of a row of `file`; dots lead into tables: train.loss")
    step_key: str = Field("step", description="key of the step in the same row")
    where: dict[NonEmptyText, Value] = Field(
        default_factory=dict, description="keys that a row must have with these values"
    )
    file: NonEmptyText = Field(
        "{run}/metrics.jsonl", description="JSON lines; only rows written since the stage began count"
    )
    trend: Literal["", "falls", "rises"] = Field("", description="last third of the points against the first third")
    within_steps: Annotated[int, Field(ge=2)] | None = Field(None, description="judged over the first so many steps")
    by: Annotated[float, Field(ge=0)] = Field(0.0, description="how far it must fall or rise, more than")
    at_least: float | None = None
    at_most: float | None = None
    when: Literal["end", "always"] = Field("end", description="limits hold for the last value, or for every one")
    finite: bool = Field(True, description="NaN and infinity stop the stage")
    steps_rise: bool = Field(False, description="each step is greater than the one before")
    points: PositiveCount = Field(1, description="how many points there must be at least")
    why: str = ""

    @model_validator(mode="after")
    def _makes_sense(self) -> MetricRule:
        raise_problems(find_metric_problems(self))
        return self


class Probe(SpecModel):
    """A request that shows that something does its work, and what its answer must be.

    An answer that is a JSON object with an error in it never passes, whatever its status.
    """

    url: NonEmptyText
    method: Literal["GET", "POST"] = "GET"
    body: str = Field("", description="JSON text sent with POST")
    status: Annotated[int, Field(ge=100, le=599)] = 200
    contains: str = Field("", description="text that the answer must hold")
    json_path: str = Field("", description="value of the JSON answer that must not be empty: choices[0].text")
    equals: Value | None = Field(None, description="what the value at json_path must be")

    @model_validator(mode="after")
    def _makes_sense(self) -> Probe:
        raise_problems(find_probe_problems(self))
        return self


class ProbeRule(Probe):
    """A request made when the command has ended well, while its services still run."""

    within_s: Seconds = Field(30.0, description="limit for the right answer, seconds")
    why: str = ""


def raise_problems(problems: Iterable[str]) -> None:
    if found := list(problems):
        raise ValidationProblems(found)


def find_file_problems(rule: FileRule) -> Iterator[str]:
    """Yield what is wrong with one file rule, each with its key."""
    if rule.path.endswith("/") or rule.path in _FOLDERS:
        yield (
            _(
                "path: {path!r} is a folder, and a folder is there before the stage; name a file in it, or "
                "all of them: {path2}/*"
            ).format(path=rule.path, path2=rule.path.rstrip("/"))
        )
    if rule.count > 1 and not WILDCARD.search(rule.path):
        yield _("count: {path!r} names one file; put * into the path to count several").format(path=rule.path)
    if rule.manifest and rule.format not in ("", "json"):
        yield _("format: a manifest is JSON, not {format}").format(format=rule.format)
    if rule.min_bytes == 0 and (rule.manifest or rule.format in ("json", "safetensors")):
        yield _("min_bytes: an empty file is no {format}; leave min_bytes out").format(format=rule.format or "manifest")


def find_metric_problems(rule: MetricRule) -> Iterator[str]:
    """Yield what is wrong with one metric rule, each with its key."""
    if bool(rule.pattern) == bool(rule.key):
        yield _(
            "pattern: a metric needs its points from somewhere: set either pattern (a log) or key (a row of `file`)"
        )
    if rule.pattern and rule.where:
        yield _("where: chooses rows of `file`; it says nothing about a log")
    if rule.key and rule.log != "stage":
        yield _("log: the points come from `file`, not from a log")
    yield from _value_problems(rule) if rule.pattern else ()
    yield from _condition_problems(rule)


def _value_problems(rule: MetricRule) -> Iterator[str]:
    names = compile_re2(rule.pattern).groupindex
    if "value" not in names:
        yield r"pattern: has no group (?P<value>…) that takes the number; write for example loss (?P<value>\S+)"
    elif rule.finite and (missed := [n for n in _NUMBERS if not _takes(rule.pattern, n)]):
        yield (
            f"pattern: its group value does not take {missed[0]!r}, so that such a line would go unseen; "
            r"write (?P<value>\S+)"
        )
    if rule.steps_rise and "step" not in names:
        yield r"steps_rise: the pattern has no group (?P<step>\d+)"


def _condition_problems(rule: MetricRule) -> Iterator[str]:
    limits = rule.at_least is not None or rule.at_most is not None
    if rule.at_least is not None and rule.at_most is not None and rule.at_least > rule.at_most:
        yield _("at_least: {at_least:g} is above at_most {at_most:g}: no value fits").format(
            at_least=rule.at_least, at_most=rule.at_most
        )
    idle = {"within_steps": rule.within_steps, "by": rule.by} if not rule.trend else {}
    yield from (
        _("{key}: says nothing without trend = 'falls' or 'rises'").format(key=key)
        for key, value in idle.items()
        if value
    )
    if rule.when == "always" and not limits:
        yield _("when: says nothing without at_least or at_most")
    if rule.trend and rule.within_steps and rule.points > rule.within_steps:
        yield _("points: {points} points do not fit into {within_steps} steps").format(
            points=rule.points, within_steps=rule.within_steps
        )


def _takes(pattern: str, number: str) -> bool:
    """Return whether the group `value` of a pattern, taken by itself, fits a number as a log writes it."""
    inside = extract_named_group(pattern, "value")
    try:
        return compile_re2(f"^(?:{inside})$").search(number) is not None
    except ValueError:
        return True


def extract_named_group(pattern: str, name: str) -> str:
    """Return what stands between the brackets of the named group of a pattern that compiles."""
    depth, text = 0, ""
    for __, part in tokenize_pattern(pattern):
        if depth:
            depth += part.startswith("(") - (part == ")")
            if not depth:
                return text
            text += part
        elif part in (f"(?P<{name}>", f"(?<{name}>"):
            depth = 1
    return text


def find_probe_problems(rule: Probe) -> Iterator[str]:
    """Yield what is wrong with one probe, each with its key."""
    if rule.url and not rule.url.startswith(("http://", "https://")):
        yield _("url: {url!r} is no address; write http://127.0.0.1:{{port.NAME}}/…").format(url=rule.url)
    if rule.equals is not None and not rule.json_path:
        yield _("equals: says nothing without json_path")
    if rule.json_path and not _PATH.fullmatch(rule.json_path):
        yield _("json_path: {json_path!r} is no path; write for example choices[0].message.content").format(
            json_path=rule.json_path
        )
    if rule.body and rule.method == "GET":
        yield _("body: is sent with POST only; set method = 'POST'")


class Gate(SpecModel):
    """What a stage must have shown before the next one may start."""

    require: tuple[RequireRule, ...] = ()
    ordered: bool = Field(False, description="the first lines of `require` come in the listed order, log by log")
    forbid: tuple[ForbidRule, ...] = ()
    benign: tuple[BenignRule, ...] = ()
    model_output: tuple[PatternText, ...] = Field(
        (), description="lines that fit hold what a model wrote: no rule reads them, and none is the first fatal one"
    )
    model_texts: tuple[ModelText, ...] = Field(
        (), description="texts of a model over several lines: from the line that fits `begins` to before that of `ends`"
    )
    exit_codes: tuple[Annotated[int, Field(ge=0, le=255)], ...] = Field(
        (0,), min_length=1, description="exit codes of the command that are good"
    )
    files: tuple[FileRule, ...] = ()
    metrics: tuple[MetricRule, ...] = ()
    probes: tuple[ProbeRule, ...] = ()

    @model_validator(mode="after")
    def _makes_sense(self) -> Gate:
        raise_problems(find_contradictions(self))
        return self


def find_contradictions(gate: Gate) -> Iterator[str]:
    """Yield rules of a gate that contradict each other or say a thing twice, each with its key."""
    yield from _twice("require", gate.require)
    yield from _twice("forbid", gate.forbid)
    yield from _twice("benign", gate.benign)
    yield from _same_name(gate)
    for index, required in enumerate(gate.require):
        yield from _required(index, required, gate)
    for index, forbidden in enumerate(gate.forbid):
        yield from _forbidden(index, forbidden, gate)
    logs = [rule.log for rule in gate.require]
    if gate.ordered and not any(logs.count(log) > 1 for log in logs):
        yield _("ordered: needs two or more lines of `require` in one log")


def _twice(what: str, rules: Iterable[RequireRule | ForbidRule | BenignRule]) -> Iterator[str]:
    seen: dict[tuple[str, str, str], int] = {}
    for index, rule in enumerate(rules):
        first = seen.setdefault((rule.log, rule.pattern, rule.after), index)
        if first != index:
            yield _("{what}[{index}].pattern: {pattern!r} is the same as {what}[{first}]; leave one out").format(
                what=what, index=index, pattern=rule.pattern, first=first
            )


def _same_name(gate: Gate) -> Iterator[str]:
    names = [rule.name for rule in gate.metrics]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield _("metrics[{index}].name: {name!r} is the name of metrics[{index2}] too; give it another").format(
                index=index, name=name, index2=names.index(name)
            )
    for what, texts in (("files", [f.path for f in gate.files]), ("probes", [p.url + p.body for p in gate.probes])):
        for index, text in enumerate(texts):
            if text in texts[:index]:
                yield _("{what}[{index}]: the same as {what}[{index2}]; make one rule of both").format(
                    what=what, index=index, index2=texts.index(text)
                )


def _required(index: int, rule: RequireRule, gate: Gate) -> Iterator[str]:
    where = f"require[{index}]"
    if rule.at_most is not None and rule.at_most < rule.count:
        yield _("{where}.at_most: {at_most} is below count {count}: no log fits").format(
            where=where, at_most=rule.at_most, count=rule.count
        )
    if rule.after == rule.pattern:
        yield _("{where}.after: is the pattern itself; use count = 2 for a second such line").format(where=where)
    for number, other in enumerate(gate.forbid):
        if other.log == rule.log and not other.after and not other.until and _covers(other.pattern, rule.pattern):
            yield (
                _(
                    "{where}.pattern: every line that fits {pattern!r} is forbidden by forbid[{number}]; leave "
                    "one out, or give the forbidden one `after` or `until`"
                ).format(where=where, pattern=rule.pattern, number=number)
            )


def _forbidden(index: int, rule: ForbidRule, gate: Gate) -> Iterator[str]:
    where = f"forbid[{index}]"
    if rule.until and rule.until == rule.after:
        yield _("{where}.until: is the same marker as `after`: nothing lies between").format(where=where)
    if rule.until and rule.until == rule.pattern:
        yield _("{where}.until: is the pattern itself: the line that ends it would be the forbidden one").format(
            where=where
        )
    for number, other in enumerate(gate.benign):
        if other.pattern == rule.pattern and other.log == rule.log and not other.after:
            yield _(
                "{where}.pattern: benign[{number}] allows every such line; leave one out, or give benign `after`"
            ).format(where=where, number=number)


def _covers(wide: str, narrow: str) -> bool:
    """Return whether `wide` fits every line that fits `narrow`; True only where that is certain."""
    if wide == narrow:
        return True
    plain = _literal(narrow)
    return bool(plain) and compile_re2(check_pattern(wide)).search(plain) is not None and not _anchored(wide)


def _literal(pattern: str) -> str:
    """Return the text that a pattern stands for when it holds no operator, else an empty text."""
    parts = [part for __, part in tokenize_pattern(pattern)]
    if any(part[0] in "^$.*+?{}[]|()" or (part[0] == "\\" and part[1].isalnum()) for part in parts):
        return ""
    return "".join(part[1:] if part[0] == "\\" else part for part in parts)


def _anchored(pattern: str) -> bool:
    return any(part in ("^", "$", r"\A", r"\z", r"\b", r"\B") for __, part in tokenize_pattern(pattern))
