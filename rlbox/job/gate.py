"""The gate of a stage: its rules, and conditions that nothing could fulfil or break.

A rule is one class from the job file to `plan.json`: read from TOML, filled (`fill`), and shown (`describe`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints, ValidationInfo, model_validator

from rlbox.amounts import exact_duration_text
from rlbox.config.pattern import compile_re2, tokenize_pattern
from rlbox.config.schema import OptionalPattern, PatternText, SpecModel, ValidationProblems
from rlbox.config.units import Seconds
from rlbox.i18n import _, join
from rlbox.job.names import STAGE_LOG
from rlbox.job.param import Value

if TYPE_CHECKING:
    from typing_extensions import Self

WILDCARD = re.compile(r"[*?\[]")
_PATH = re.compile(r"(?:[^.\[\]\s]+|\[\d+\])(?:\.[^.\[\]\s]+|\[\d+\])*")
_FOLDERS = ("{run}", "{data}", "{job}")
_NUMBERS = ("nan", "inf", "-inf", "1", "-1.5", "1e-05")
"""What a metric's value group must take: a pattern for digits alone is blind to NaN."""

PLAN_CONTEXT = "plan.json"
"""Context of pydantic for rules that were checked and filled before: only their types are checked again."""

FillText = Callable[[str, str, Callable[[str], str]], str]
"""Returns a text without placeholders; takes its path in the job, the text, and how values are quoted."""

NonEmptyText = Annotated[str, StringConstraints(min_length=1)]
PositiveCount = Annotated[int, Field(ge=1)]


class Rule(SpecModel):
    """A table of a gate."""

    filled_patterns: ClassVar[tuple[str, ...]] = ()
    filled_texts: ClassVar[tuple[str, ...]] = ()

    def find_spec_errors(self) -> Iterator[str]:
        """Yield what is wrong with the rule, each with its key."""
        yield from ()

    def fill_placeholders(self, where: str, fill_text: FillText) -> Self:
        """Return the rule without placeholders; `where` is its path in the job."""
        filled = {key: fill_text(f"{where}.{key}", getattr(self, key), re.escape) for key in self.filled_patterns}
        filled |= {key: fill_text(f"{where}.{key}", getattr(self, key), str) for key in self.filled_texts}
        return self.model_copy(update=filled)

    @model_validator(mode="before")
    @classmethod
    def _ignore_keys_of_other_versions(cls, data: Any, info: ValidationInfo) -> Any:
        if info.context != PLAN_CONTEXT or not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if key in cls.model_fields}

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Self:
        if info.context != PLAN_CONTEXT and (problems := list(self.find_spec_errors())):
            raise ValidationProblems(problems)
        return self


class LineRule(Rule):
    """What the rules about lines of a log have in common."""

    filled_patterns: ClassVar[tuple[str, ...]] = ("pattern", "after")

    pattern: PatternText = Field(description="RE2 pattern; matches anywhere in a line")
    log: NonEmptyText = Field(STAGE_LOG, description="log to search: stage, or the name of a service")
    after: OptionalPattern = Field(
        "", description="RE2 pattern; only lines after its first match count; empty: all lines"
    )
    why: str = Field("", description="reason for the rule, shown in error messages")

    def describe(self) -> str:
        """Return the pattern, with the log when it is not the stage's own, and the conditions."""
        where = "" if self.log in ("", STAGE_LOG) else f"{self.log}: "
        return join("", (where, self.pattern, _in_brackets(self._conditions())))

    def _conditions(self) -> list[str]:
        return [_("after {marker}").format(marker=self.after)] if self.after else []


def _in_brackets(conditions: list[str]) -> str:
    return join("", (" (", join(", ", conditions), ")")) if conditions else ""


class RequireRule(LineRule):
    """A line that a log must hold."""

    count: PositiveCount = Field(1, description="minimum number of matching lines")
    at_most: PositiveCount | None = Field(
        None, description="maximum number of matching lines; one more stops the stage; absent: no limit"
    )
    within_s: Seconds | None = Field(
        None, description="time limit after the start of the command, seconds; absent: no limit"
    )

    def _conditions(self) -> list[str]:
        conditions = [_("at least {value}").format(value=self.count)] if self.count > 1 else []
        conditions += [_("at most {value}").format(value=self.at_most)] if self.at_most is not None else []
        if self.within_s is not None:
            conditions.append(_("within {value}").format(value=exact_duration_text(self.within_s)))
        return conditions + super()._conditions()


class ForbidRule(LineRule):
    """A line that a log must not hold: the stage is stopped there.

    In the stage's own log it is noted instead where its process makes a further step: that process lives on, and has
    quoted such a line, in a sample of its model as a rule.
    """

    filled_patterns = ("pattern", "after", "until")

    always: bool = Field(False, description="stop the stage even if its process continues with training steps")
    until: OptionalPattern = Field("", description="RE2 pattern; lines after its first match are allowed; empty: none")

    def _conditions(self) -> list[str]:
        return super()._conditions() + ([_("until {marker}").format(marker=self.until)] if self.until else [])


class BenignRule(LineRule):
    """A line that looks bad and is not: it breaks no `forbid` rule and is never taken for the first fatal line.

    With `after` it is benign only behind that marker; before it, it counts as what it is.
    """


class FixBenignRule(BenignRule):
    """A benign line of the fix `known`, in every log."""

    log: str = ""
    known: str = ""


class IgnoredModelText(Rule):
    """A text of several lines that a model wrote, as a trainer prints it, between two lines of its own."""

    filled_patterns = ("begins", "ends")

    begins: PatternText = Field(description="RE2 pattern of the first line of the text")
    ends: PatternText = Field(description="RE2 pattern of the first line after the text")


class FileRule(Rule):
    """A path that must exist and be complete; with `*`, `?` or `[` in it, every file that fits must be."""

    filled_texts = ("path",)

    path: NonEmptyText = Field(description="path of a file or directory; may contain * ? [ **")
    min_bytes: Annotated[int, Field(ge=0)] = Field(1, description="minimum size of each file, bytes")
    manifest: bool = Field(False, description="the file is a JSON manifest; check size and sha256 of the listed files")
    format: Literal["", "json", "jsonl", "safetensors"] = Field(
        "", description="file format to validate; empty: not validated"
    )
    count: PositiveCount = Field(1, description="minimum number of matching files, if the path has * ? or [")
    newer: bool = Field(False, description="the stage must have written the file")
    settled_s: Annotated[float, Field(ge=0)] = Field(
        0.0, description="time for which the file must not change, seconds"
    )
    why: str = Field("", description="reason for the rule, shown in error messages")

    def describe(self) -> str:
        conditions = [_("at least {value}").format(value=self.count)] if self.count > 1 else []
        conditions += [self.format] if self.format else []
        conditions += [_("written by the stage")] if self.newer else []
        return join("", (self.path, _in_brackets(conditions)))

    def find_spec_errors(self) -> Iterator[str]:
        if self.path.endswith("/") or self.path in _FOLDERS:
            yield _(
                "path: {path!r} is a folder, and a folder is there before the stage; name a file in it, or "
                "all of them: {path2}/*"
            ).format(path=self.path, path2=self.path.rstrip("/"))


class MetricRule(Rule):
    """A condition on numbers that a stage reports.

    They are in a log (`pattern`), in a file of JSON lines (`key`), or in any file of metrics (`metric`).
    """

    filled_patterns = ("pattern",)
    filled_texts = ("file",)

    name: NonEmptyText = Field(description="name of the metric in results and messages")
    pattern: OptionalPattern = Field(
        "", description="RE2 pattern with groups `(?P<value>…)` and optionally `(?P<step>…)`"
    )
    log: NonEmptyText = Field(STAGE_LOG, description="log to search: stage, or the name of a service")
    key: str = Field("", description="key of the value in a row of file; dots for nested tables: train.loss")
    metric: str = Field(
        "", description="common name, such as reward, or a trainer's own key; read from any metrics file of the stage"
    )
    step_key: str = Field("step", description="key of the step in the same row")
    where: dict[NonEmptyText, Value] = Field(
        default_factory=dict, description="keys and values that a row must have; empty: all rows"
    )
    file: NonEmptyText = Field(
        "{run}/metrics.jsonl", description="JSON Lines file; only rows written during the stage count"
    )
    trend: Literal["", "falls", "rises"] = Field(
        "", description="mean of the last third compared with the first third; empty: not checked"
    )
    within_steps: Annotated[int, Field(ge=2)] | None = Field(
        None, description="number of first steps that trend uses; absent: all"
    )
    by: Annotated[float, Field(ge=0)] = Field(0.0, description="minimum change for trend; the change must be larger")
    at_least: float | None = Field(None, description="smallest allowed value; absent: no limit")
    at_most: float | None = Field(None, description="largest allowed value; absent: no limit")
    when: Literal["end", "always"] = Field(
        "end", description="check at_least and at_most on the last value (end) or on all"
    )
    finite: bool = Field(True, description="stop the stage at NaN or infinity")
    steps_rise: bool = Field(False, description="each step must be greater than the one before")
    points: PositiveCount = Field(1, description="minimum number of values")
    why: str = Field("", description="reason for the rule, shown in error messages")

    def describe(self) -> str:
        conditions: list[str] = []
        if self.trend:
            steps = _(" within {steps} steps").format(steps=self.within_steps) if self.within_steps else ""
            by = _(" by more than {value:g}").format(value=self.by) if self.by else ""
            conditions.append(join("", (_("falls") if self.trend == "falls" else _("rises"), steps, by)))
        when = _("always") if self.when == "always" else _("at the end")
        at_least, at_most = _("at least {value:g} {when}"), _("at most {value:g} {when}")
        conditions += [at_least.format(value=self.at_least, when=when)] if self.at_least is not None else []
        conditions += [at_most.format(value=self.at_most, when=when)] if self.at_most is not None else []
        conditions += [_("steps rise")] if self.steps_rise else []
        conditions += [_("{count} points").format(count=self.points)] if self.points > 1 else []
        conditions += [_("finite")] if self.finite else []
        return join("", (self.name, ": ", join(", ", conditions) if conditions else _("there")))

    def find_spec_errors(self) -> Iterator[str]:
        if [bool(self.pattern), bool(self.key), bool(self.metric)].count(True) != 1:
            yield _(
                "pattern: set exactly one source of points: pattern (a log), key (a row of `file`) or metric (any file)"
            )
        if self.metric and {"file", "where", "step_key", "log"} & self.model_fields_set:
            yield _("metric: file, where, step_key and log have no effect with metric; remove them")
        yield from self._pattern_problems() if self.pattern else ()

    def _pattern_problems(self) -> Iterator[str]:
        names = compile_re2(self.pattern).groupindex
        if "value" not in names:
            yield r"pattern: has no group (?P<value>…) that takes the number; write for example loss (?P<value>\S+)"
        elif self.finite and (missed := [n for n in _NUMBERS if not _value_group_fits(self.pattern, n)]):
            yield (
                f"pattern: its group value does not take {missed[0]!r}, so that such a line would go unseen; "
                r"write (?P<value>\S+)"
            )
        if self.steps_rise and "step" not in names:
            yield r"steps_rise: the pattern has no group (?P<step>\d+)"


def _value_group_fits(pattern: str, number: str) -> bool:
    """Return whether the group `value` of a pattern, taken by itself, fits a number as a log writes it."""
    try:
        return compile_re2(f"^(?:{extract_named_group_regex_or_empty(pattern, 'value')})$").search(number) is not None
    except ValueError:
        return True


def extract_named_group_regex_or_empty(pattern: str, name: str) -> str:
    """Return what stands between the brackets of the named group of a pattern that compiles."""
    depth, text = 0, ""
    for part in tokenize_pattern(pattern):
        if depth:
            depth += part.startswith("(") - (part == ")")
            if not depth:
                return text
            text += part
        elif part in (f"(?P<{name}>", f"(?<{name}>"):
            depth = 1
    return text


class HttpProbe(Rule):
    """A request that shows that something does its work, and what its answer must be.

    An answer that is a JSON object with an error in it never passes, whatever its status.
    """

    filled_texts = ("url", "body", "contains")

    url: NonEmptyText = Field(description="address to request: http://127.0.0.1:{port.NAME}/…")
    method: Literal["GET", "POST"] = Field("GET", description="HTTP method of the request")
    body: str = Field("", description="JSON body of a POST request; empty: no body")
    status: Annotated[int, Field(ge=100, le=599)] = Field(200, description="expected HTTP status code")
    contains: str = Field("", description="text that the response must contain; empty: not checked")
    json_path: str = Field("", description="JSON value that must not be empty: choices[0].text; empty: not checked")
    equals: Value | None = Field(None, description="expected value at json_path; absent: any")

    def describe(self) -> str:
        return f"{self.method} {self.url}"

    def find_spec_errors(self) -> Iterator[str]:
        if self.url and not self.url.startswith(("http://", "https://")):
            yield _("url: {url!r} is not an address; write http://127.0.0.1:{{port.NAME}}/…").format(url=self.url)
        if self.json_path and not _PATH.fullmatch(self.json_path):
            yield _("json_path: {json_path!r} is not a path; write for example choices[0].message.content").format(
                json_path=self.json_path
            )


class FinalProbe(HttpProbe):
    """A request made when the command has ended well, while its services still run."""

    within_s: Seconds = Field(30.0, description="time limit for the expected response, seconds")
    why: str = Field("", description="reason for the probe, shown in error messages")


class Ready(HttpProbe):
    """What proves that a service does its work: a request that is answered as told, a line of its log, a port.

    All that is given must hold. The request is repeated until it is answered as told.
    """

    filled_patterns = ("line",)

    url: str = Field("", description="address to request: http://127.0.0.1:{port.NAME}/…; empty: no request")
    line: OptionalPattern = Field("", description="RE2 pattern of a line in the service's log; empty: not checked")
    port: str | int = Field(
        "", description="name of a port of the service that must accept connections; empty: not checked"
    )

    def describe(self) -> str:
        parts = [super().describe() if self.url else "", _("port {port}").format(port=self.port) if self.port else ""]
        parts += [_("a line like /{line}/").format(line=self.line) if self.line else ""]
        return join(_(" and "), filter(None, parts))

    def find_spec_errors(self) -> Iterator[str]:
        yield from super().find_spec_errors()
        if not (self.url or self.line or self.port):
            yield _("url: give a url, a line or a port: without one nothing shows that the service does its work")


class Gate(Rule):
    """What a stage must have shown before the next one may start."""

    require: tuple[RequireRule, ...] = Field((), description="log lines that must occur")
    ordered: bool = Field(False, description="first matches of require must come in the listed order, per log")
    forbid: tuple[ForbidRule, ...] = Field((), description="log lines that stop the stage")
    benign: tuple[BenignRule, ...] = Field(
        (), description="harmless log lines: exceptions from forbid and from the first fatal line"
    )
    model_output: tuple[PatternText, ...] = Field(
        (), description="RE2 patterns of lines that a model wrote; other rules skip them"
    )
    model_texts: tuple[IgnoredModelText, ...] = Field(
        (), description="texts of several lines that a model wrote; other rules skip them"
    )
    exit_codes: tuple[Annotated[int, Field(ge=0, le=255)], ...] = Field(
        (0,), min_length=1, description="accepted exit codes of the command"
    )
    files: tuple[FileRule, ...] = Field((), description="output files that must exist and be complete")
    metrics: tuple[MetricRule, ...] = Field((), description="numbers to check, from a log or a JSON Lines file")
    probes: tuple[FinalProbe, ...] = Field(
        (), description="HTTP requests after the command has passed, while services run"
    )

    def fill_placeholders(self, where: str, fill_text: FillText) -> Gate:
        filled: dict[str, Any] = {
            key: tuple(rule.fill_placeholders(f"{where}.{key}", fill_text) for rule in getattr(self, key))
            for key in ("require", "forbid", "benign", "model_texts", "files", "metrics", "probes")
        }
        patterns = tuple(fill_text(f"{where}.model_output", text, re.escape) for text in self.model_output)
        return self.model_copy(update={**filled, "model_output": patterns})

    def find_spec_errors(self) -> Iterator[str]:
        names = [rule.name for rule in self.metrics]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield _("metrics: two have the name {name!r}").format(name=name)
        for index, rule in enumerate(self.require):
            if rule.at_most is not None and rule.at_most < rule.count:
                yield _("{where}.at_most: {at_most} is below count {count}: no log fits").format(
                    where=f"require[{index}]", at_most=rule.at_most, count=rule.count
                )
            for number, other in enumerate(self.forbid):
                if (other.pattern, other.log, other.after, other.until) == (rule.pattern, rule.log, "", ""):
                    yield _(
                        "{where}.pattern: every line that fits {pattern!r} is forbidden by forbid[{number}]; leave "
                        "one out, or give the forbidden one `after` or `until`"
                    ).format(where=f"require[{index}]", pattern=rule.pattern, number=number)
