"""Variables, flags, ports and commands that no longer work, or never did: the schema of `drift.toml`."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field, StringConstraints, model_validator

from rlbox.config.schema import Name, SingleLine, SpecModel, validate_spec
from rlbox.config.toml_files import load_toml
from rlbox.i18n import _
from rlbox.lint.calls import Call
from rlbox.lint.document import Document, Setting
from rlbox.target.target import Pattern

TABLE = Path(__file__).with_name("drift.toml")
Kind = Literal["variable", "flag", "port", "command", "shell", "path", "python", "image"]
Severity = Literal["error", "warning", "note"]
State = Literal["works", "warns", "fails", "unknown"]
Marks = Annotated[str, StringConstraints(pattern=r"^[a-z -]*$")]
"""Where and how a command runs: see `Call.within`."""


def _range(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(str(error)) from error
    return text


Range = Annotated[str, AfterValidator(_range)]


class Matcher(SpecModel):
    """What is looked for; or, where that takes more, the code named in `check`."""

    kind: Kind
    names: tuple[SingleLine, ...] = Field((), description="variables, or options, that have the defect")
    name: Pattern = Field("", description="the same as an expression that the whole name fits")
    renamed: dict[SingleLine, SingleLine] = Field({}, description="old name to new one")
    value: Pattern = Field("", description="only with a value in which this is found")
    command: Pattern = Field("", description="only for programs, or command lines, that begin with this")
    needs: tuple[Pattern, ...] = Field((), description="only when the command line has each of these")
    without: tuple[Pattern, ...] = Field((), description="only when the command line has none of these")
    statement: Pattern = Field(
        "", description="only when this is in the source of the pipeline, whose part `value` it is"
    )
    behind: Pattern = Field("", description="only behind a pipe out of a program that begins with this")
    inside: Marks = Field("", description="only for commands that run there")
    outside: tuple[Marks, ...] = Field((), description="only for commands that run in none")
    how: Literal["", "dockerfile", "python-late"] = Field("", description="only for variables that are set there")
    says: Pattern = Field("", description="only when the document has this, in prose and comments too")
    unless: Pattern = Field("", description="only when the document has this nowhere, in prose and comments neither")
    check: Annotated[str, StringConstraints(pattern=r"^[a-z_]*$")] = Field("", description="code that finds it")


class DriftRule(Matcher):
    """One defect, the versions that have it, and the form that works."""

    id: Name
    what: SingleLine = Field(description="what is wrong; {name}, {value} and other fields of the finding are put in")
    next: SingleLine = Field(description="the form that works; the same fields are put in")
    severity: Severity = "error"
    also: tuple[Matcher, ...] = Field((), description="what else has the defect")
    platform: Literal["", "vast", "autodl", "rented"] = Field("", description="only for a target that is rented there")
    region: Literal["", "cn"] = Field("", description="only for a target that stands there")
    machine: Pattern = Field(
        "", description="only for a target of such a platform or GPU, or a document that names one"
    )
    package: SingleLine = Field("", description="distribution whose version decides")
    works: Range = Field("", description="versions in which it works; every other one has the defect")
    warns: Range = Field("", description="versions in which it still works, but will not for long")
    fails: Range = Field("", description="the only versions with the defect; nothing is said where none is known")
    unknown: Severity | None = Field(None, description="severity where the version is not known")
    numbers: dict[str, SingleLine] = Field(
        {}, description="of a formula: the options that give each, `=` and a default"
    )
    holds: str = Field("", description="formula over the numbers that must be true")
    source: tuple[SingleLine, ...] = ()
    dated: datetime.date

    @model_validator(mode="after")
    def _can_be_matched(self) -> DriftRule:
        if not (self.check or self.names or self.name or self.command or self.renamed or self.kind == "image"):
            raise ValueError(_("give names, command, renamed or check: nothing would be found"))
        if bool(self.works or self.warns or self.fails) > bool(self.package):
            raise ValueError(_("give package together with works, warns and fails"))
        return self

    def judge_versions(self, versions: Mapping[str, str]) -> State:
        """Return what the rule's package does in the versions at hand; `fails` for a rule without one."""
        if not (self.works or self.warns or self.fails):
            return "fails"
        try:
            version = Version(versions[self.package])
        except (KeyError, InvalidVersion):
            return "works" if self.fails else "unknown"

        def covers(versions: str) -> bool:
            return bool(versions) and SpecifierSet(versions).contains(version, prereleases=True)

        if self.fails:
            return "fails" if covers(self.fails) else "works"
        return "works" if covers(self.works) else "warns" if covers(self.warns) else "fails"

    def describe_versions(self, versions: Mapping[str, str]) -> str:
        """Return in which versions it works, as far as that decides."""
        parts = [f"not with {self.package} {self.fails}"] if self.fails else []
        parts += [f"works with {self.package} {self.works}"] if self.works else []
        how = "with a warning," if self.works else "still accepted by"
        parts += [f"{how} {self.package} {self.warns}"] if self.warns else []
        if parts and self.package in versions:
            parts.append(f"and here it is {versions[self.package]}")
        return f" ({', '.join(parts)})" if parts else ""


class Drift(SpecModel):
    """The table."""

    rule: tuple[DriftRule, ...]

    @model_validator(mode="after")
    def _ids_differ(self) -> Drift:
        ids = [rule.id for rule in self.rule]
        if twice := sorted({id for id in ids if ids.count(id) > 1}):
            raise ValueError("\n".join(f"two rules have the id {id!r}" for id in twice))
        return self


@cache
def load_drift() -> tuple[DriftRule, ...]:
    """Return the shipped table."""
    return validate_spec(Drift, load_toml(TABLE), str(TABLE)).rule


@dataclass(frozen=True, kw_only=True)
class MachineInfo:
    """What is known of the machine that a document is for; nothing by default."""

    target: str = ""
    platform: str = ""
    region: str = ""
    arch: str = ""


@dataclass(frozen=True, kw_only=True)
class Hit:
    """Where a rule found its defect; `begin` is where the command begins that it is in, `fields` fill the texts.

    `versions` is what is known of the versions that decided, for the message; `severity` replaces the rule's.
    """

    start: int
    begin: int = -1
    within: frozenset[str] = frozenset()
    fields: Mapping[str, str] = field(default_factory=dict)
    severity: Severity | None = None


Check = Callable[[Document, DriftRule, Mapping[str, str]], Iterable[Hit]]


def call_hit(call: Call, start: int | None = None, /, **fields: str) -> Hit:
    """Return a hit in a call, at its beginning unless `start` says where."""
    outer = call
    while outer.outer:
        outer = outer.outer
    start = call.start if start is None else start
    return Hit(start=start, begin=outer.start, within=call.within, fields=fields)


def setting_hit(setting: Setting) -> Hit:
    return Hit(start=setting.start, within=setting.within, fields={"name": setting.name, "value": setting.value})
