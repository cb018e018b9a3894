"""The gate: what a stage must have shown before the next one may start. The schema of `[stages.gate]`.

Every rule with an example: docs/gates.md. Patterns are RE2 (`rlbox.config.pattern`); they are looked for anywhere in a
line, colours removed, also behind Ray's `(Actor pid=…)` and a progress bar.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

from pydantic import Field, model_validator

from rlbox.config.pattern import check_pattern, compile_re2, tokens
from rlbox.config.schema import Frozen, PatternText
from rlbox.i18n import _
from rlbox.job.gate_rule import (
    BenignRule,
    FileRule,
    ForbidRule,
    MetricRule,
    ModelText,
    ProbeRule,
    RequireRule,
    raise_problems,
)


class Gate(Frozen):
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
        raise_problems(contradictions(self))
        return self


def contradictions(gate: Gate) -> Iterator[str]:
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
    parts = [part for __, part in tokens(pattern)]
    if any(part[0] in "^$.*+?{}[]|()" or (part[0] == "\\" and part[1].isalnum()) for part in parts):
        return ""
    return "".join(part[1:] if part[0] == "\\" else part for part in parts)


def _anchored(pattern: str) -> bool:
    return any(part in ("^", "$", r"\A", r"\z", r"\b", r"\B") for __, part in tokens(pattern))
