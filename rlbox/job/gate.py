"""The gate of a stage: its rules, and conditions that nothing could fulfil or break.

A rule is one class from the job file to `plan.json`: read from TOML, filled (`fill`), and shown (`describe`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints, ValidationInfo, field_validator, model_validator

from rlbox.amounts import exact_duration_text
from rlbox.config.pattern import compile_re2, tokenize_pattern, validate_selective_re2_pattern
from rlbox.config.schema import OptionalPattern, PatternText, SpecModel, ValidationProblems
from rlbox.config.units import Seconds
from rlbox.i18n import _
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
EvenIfStepsGoOn = bool


class Rule(SpecModel):
    """A table of a gate."""

    filled_patterns: ClassVar[tuple[str, ...]] = ()
    filled_texts: ClassVar[tuple[str, ...]] = ()

    def find_problems(self) -> Iterator[str]:
        """Yield what is wrong with the rule, each with its key."""
        yield from ()

    def fill(self, where: str, fill_text: FillText) -> Self:
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
        if info.context != PLAN_CONTEXT and (problems := list(self.find_problems())):
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
        return f"{where}{self.pattern}{_in_brackets(self._conditions())}"

    def _conditions(self) -> list[str]:
        return [f"after {self.after}"] if self.after else []


def _in_brackets(conditions: list[str]) -> str:
    return f" ({', '.join(conditions)})" if conditions else ""


class RequireRule(LineRule):
    """A line that a log must hold."""

    count: PositiveCount = Field(1, description="minimum number of matching lines")
    at_most: PositiveCount | None = Field(
        None, description="maximum number of matching lines; one more stops the stage; absent: no limit"
    )
    within_s: Seconds | None = Field(
        None, description="time limit after the start of the command, seconds; absent: no limit"
    )

    @field_validator("count", mode="before")
    @classmethod
    def _asks_for_something(cls, value: object) -> object:
        if value == 0 and not isinstance(value, bool):
            raise ValueError(_("0 lines ask for nothing; a line that must not come is a rule of `forbid`"))
        return value

    def _conditions(self) -> list[str]:
        conditions = [f"at least {self.count}"] if self.count > 1 else []
        conditions += [f"at most {self.at_most}"] if self.at_most is not None else []
        conditions += [f"within {exact_duration_text(self.within_s)}"] if self.within_s is not None else []
        return conditions + super()._conditions()


class ForbidRule(LineRule):
    """A line that a log must not hold: the stage is stopped there.

    In the stage's own log it is noted instead where its process makes a further step: that process lives on, and has
    quoted such a line, in a sample of its model as a rule.
    """

    filled_patterns = ("pattern", "after", "until")

    always: EvenIfStepsGoOn = Field(
        False, description="stop the stage even if its process continues with training steps"
    )
    until: OptionalPattern = Field("", description="RE2 pattern; lines after its first match are allowed; empty: none")

    def _conditions(self) -> list[str]:
        return super()._conditions() + ([f"until {self.until}"] if self.until else [])


class BenignRule(LineRule):
    """A line that looks bad and is not: it breaks no `forbid` rule and is never taken for the first fatal line.

    With `after` it is benign only behind that marker; before it, it counts as what it is.
    """


class CatalogueLine(BenignRule):
    """A benign line of the fix `known`, in every log."""

    log: str = ""
    known: str = ""


class ModelText(Rule):
    """A text of several lines that a model wrote, as a trainer prints it, between two lines of its own."""

    filled_patterns = ("begins", "ends")

    begins: PatternText = Field(description="RE2 pattern of the first line of the text")
    ends: PatternText = Field(description="RE2 pattern of the first line after the text")

    def find_problems(self) -> Iterator[str]:
        if self.begins == self.ends:
            yield _("ends: is the same as begins: nothing lies between")


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
        conditions = [f"at least {self.count}"] if self.count > 1 else []
        conditions += [self.format] if self.format else []
        conditions += ["written by the stage"] if self.newer else []
        return f"{self.path}{_in_brackets(conditions)}"

    def find_problems(self) -> Iterator[str]:
        if self.path.endswith("/") or self.path in _FOLDERS:
            yield _(
                "path: {path!r} is a folder, and a folder is there before the stage; name a file in it, or "
                "all of them: {path2}/*"
            ).format(path=self.path, path2=self.path.rstrip("/"))
        if self.count > 1 and not WILDCARD.search(self.path):
            yield _("count: {path!r} names one file; put * into the path to count several").format(path=self.path)
        if self.manifest and self.format not in ("", "json"):
            yield _("format: a manifest is JSON, not {format}").format(format=self.format)
        if self.min_bytes == 0 and (self.manifest or self.format in ("json", "safetensors")):
            yield _("min_bytes: an empty file is not {format}; leave min_bytes out").format(
                format=self.format or "manifest"
            )


class MetricRule(Rule):
    """A condition on numbers that a stage tells: in a log (`pattern`) or in a file of JSON lines (`key`)."""

    filled_patterns = ("pattern",)
    filled_texts = ("file",)

    name: NonEmptyText = Field(description="name of the metric in results and messages")
    pattern: OptionalPattern = Field(
        "", description="RE2 pattern with groups `(?P<value>…)` and optionally `(?P<step>…)`"
    )
    log: NonEmptyText = Field(STAGE_LOG, description="log to search: stage, or the name of a service")
    key: str = Field("", description="key of the value in a row of file; dots for nested tables: train.loss")
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
        conditions = []
        if self.trend:
            steps = f" within {self.within_steps} steps" if self.within_steps else ""
            conditions.append(f"{self.trend}{steps}" + (f" by more than {self.by:g}" if self.by else ""))
        when = "always" if self.when == "always" else "at the end"
        conditions += [f"at least {self.at_least:g} {when}"] if self.at_least is not None else []
        conditions += [f"at most {self.at_most:g} {when}"] if self.at_most is not None else []
        conditions += ["steps rise"] if self.steps_rise else []
        conditions += [f"{self.points} points"] if self.points > 1 else []
        conditions += ["finite"] if self.finite else []
        return f"{self.name}: {', '.join(conditions) or 'there'}"

    def find_problems(self) -> Iterator[str]:
        if bool(self.pattern) == bool(self.key):
            yield _(
                "pattern: a metric needs its points from somewhere: set either pattern (a log) or key (a row of `file`)"
            )
        if self.pattern and self.where:
            yield _("where: chooses rows of `file`; it says nothing about a log")
        if self.key and self.log != STAGE_LOG:
            yield _("log: the points come from `file`, not from a log")
        yield from self._pattern_problems() if self.pattern else ()
        yield from self._condition_problems()

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

    def _condition_problems(self) -> Iterator[str]:
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            yield _("at_least: {at_least:g} is above at_most {at_most:g}: no value fits").format(
                at_least=self.at_least, at_most=self.at_most
            )
        for key, value in (("within_steps", self.within_steps), ("by", self.by)):
            if value and not self.trend:
                yield _("{key}: says nothing without trend = 'falls' or 'rises'").format(key=key)
        if self.when == "always" and self.at_least is None and self.at_most is None:
            yield _("when: says nothing without at_least or at_most")
        if self.trend and self.within_steps and self.points > self.within_steps:
            yield _("points: {points} points do not fit into {within_steps} steps").format(
                points=self.points, within_steps=self.within_steps
            )


def _value_group_fits(pattern: str, number: str) -> bool:
    """Return whether the group `value` of a pattern, taken by itself, fits a number as a log writes it."""
    try:
        return compile_re2(f"^(?:{get_named_group_regex(pattern, 'value')})$").search(number) is not None
    except ValueError:
        return True


def get_named_group_regex(pattern: str, name: str) -> str:
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

    def find_problems(self) -> Iterator[str]:
        if self.url and not self.url.startswith(("http://", "https://")):
            yield _("url: {url!r} is not an address; write http://127.0.0.1:{{port.NAME}}/…").format(url=self.url)
        if self.equals is not None and not self.json_path:
            yield _("equals: says nothing without json_path")
        if self.json_path and not _PATH.fullmatch(self.json_path):
            yield _("json_path: {json_path!r} is not a path; write for example choices[0].message.content").format(
                json_path=self.json_path
            )
        if self.body and self.method == "GET":
            yield _("body: is sent with POST only; set method = 'POST'")


class ProbeRule(HttpProbe):
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
        parts = [super().describe() if self.url else "", f"port {self.port}" if self.port else ""]
        parts += [f"a line like /{self.line}/" if self.line else ""]
        return " and ".join(filter(None, parts))

    def find_problems(self) -> Iterator[str]:
        yield from super().find_problems()
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
    model_texts: tuple[ModelText, ...] = Field(
        (), description="texts of several lines that a model wrote; other rules skip them"
    )
    exit_codes: tuple[Annotated[int, Field(ge=0, le=255)], ...] = Field(
        (0,), min_length=1, description="accepted exit codes of the command"
    )
    files: tuple[FileRule, ...] = Field((), description="output files that must exist and be complete")
    metrics: tuple[MetricRule, ...] = Field((), description="numbers to check, from a log or a JSON Lines file")
    probes: tuple[ProbeRule, ...] = Field(
        (), description="HTTP requests after the command has passed, while services run"
    )

    def fill(self, where: str, fill_text: FillText) -> Gate:
        filled: dict[str, Any] = {
            key: tuple(rule.fill(f"{where}.{key}", fill_text) for rule in getattr(self, key))
            for key in ("require", "forbid", "benign", "model_texts", "files", "metrics", "probes")
        }
        patterns = tuple(fill_text(f"{where}.model_output", text, re.escape) for text in self.model_output)
        return self.model_copy(update={**filled, "model_output": patterns})

    def find_problems(self) -> Iterator[str]:
        """Yield rules that contradict each other or say a thing twice, each with its key."""
        for key, rules in (("require", self.require), ("forbid", self.forbid), ("benign", self.benign)):
            yield from _find_repeated(f"{key}[{{}}].pattern", [(rule.pattern, rule.log, rule.after) for rule in rules])
        yield from _find_repeated("metrics[{}].name", [(rule.name,) for rule in self.metrics])
        yield from _find_repeated("files[{}].path", [(rule.path,) for rule in self.files])
        yield from _find_repeated("probes[{}].url", [(rule.url, rule.body) for rule in self.probes])
        for index, required in enumerate(self.require):
            yield from _find_require_problems(f"require[{index}]", required, self.forbid)
        for index, forbidden in enumerate(self.forbid):
            yield from _find_forbid_problems(f"forbid[{index}]", forbidden, self.benign)
        logs = [rule.log for rule in self.require]
        if self.ordered and not any(logs.count(log) > 1 for log in logs):
            yield _("ordered: needs two or more lines of `require` in one log")


def _find_repeated(place: str, keys: list[tuple[str, ...]]) -> Iterator[str]:
    for index, key in enumerate(keys):
        if key in keys[:index]:
            yield _("{place}: {text!r} is the same as {first}; leave one out, or make one rule of both").format(
                place=place.format(index), text=key[0], first=place.format(keys.index(key))
            )


def _find_require_problems(where: str, rule: RequireRule, forbid: Iterable[ForbidRule]) -> Iterator[str]:
    if rule.at_most is not None and rule.at_most < rule.count:
        yield _("{where}.at_most: {at_most} is below count {count}: no log fits").format(
            where=where, at_most=rule.at_most, count=rule.count
        )
    if rule.after == rule.pattern:
        yield _("{where}.after: is the pattern itself; use count = 2 for a second such line").format(where=where)
    for number, other in enumerate(forbid):
        if other.log == rule.log and not other.after and not other.until and _covers(other.pattern, rule.pattern):
            yield _(
                "{where}.pattern: every line that fits {pattern!r} is forbidden by forbid[{number}]; leave "
                "one out, or give the forbidden one `after` or `until`"
            ).format(where=where, pattern=rule.pattern, number=number)


def _find_forbid_problems(where: str, rule: ForbidRule, benign: Iterable[BenignRule]) -> Iterator[str]:
    if rule.until and rule.until == rule.after:
        yield _("{where}.until: is the same marker as `after`: nothing lies between").format(where=where)
    if rule.until and rule.until == rule.pattern:
        yield _("{where}.until: is the pattern itself: the line that ends it would be the forbidden one").format(
            where=where
        )
    for number, other in enumerate(benign):
        if other.pattern == rule.pattern and other.log == rule.log and not other.after:
            yield _(
                "{where}.pattern: benign[{number}] allows every such line; leave one out, or give benign `after`"
            ).format(where=where, number=number)


def _covers(wide: str, narrow: str) -> bool:
    """Return whether `wide` fits every line that fits `narrow`; True only where that is certain."""
    if wide == narrow:
        return True
    plain = _literal(narrow)
    return (
        bool(plain)
        and compile_re2(validate_selective_re2_pattern(wide)).search(plain) is not None
        and not _is_anchored(wide)
    )


def _literal(pattern: str) -> str:
    """Return the text that a pattern stands for when it holds no operator, else an empty text."""
    parts = list(tokenize_pattern(pattern))
    if any(part[0] in "^$.*+?{}[]|()" or (part[0] == "\\" and part[1].isalnum()) for part in parts):
        return ""
    return "".join(part[1:] if part[0] == "\\" else part for part in parts)


def _is_anchored(pattern: str) -> bool:
    return any(part in ("^", "$", r"\A", r"\z", r"\b", r"\B") for part in tokenize_pattern(pattern))
