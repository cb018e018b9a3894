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

from rlbox.config.schema import DemandNumber, Name, SingleLine, SpecModel, validate_spec
from rlbox.config.toml_files import load_toml
from rlbox.i18n import _
from rlbox.lint.document import Call, Document, Setting
from rlbox.lint.text import Severity
from rlbox.target.target import Pattern

TABLE = Path(__file__).with_name("drift.toml")
Kind = Literal["variable", "flag", "port", "command", "shell", "path", "python", "image"]
State = Literal["works", "warns", "fails", "unknown"]


def _range(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(str(error)) from error
    return text


Range = Annotated[str, AfterValidator(_range)]


class DriftRule(SpecModel):
    """One defect, the versions that have it, and the form that works.

    A rule is matched by its names and patterns, or, where that takes more, by the code named in `check`.
    """

    id: Name
    kind: Kind
    what: SingleLine = Field(description="what is wrong; {name}, {value} and other fields of the finding are put in")
    next: SingleLine = Field(description="the form that works; the same fields are put in")
    severity: Severity = "error"
    names: tuple[SingleLine, ...] = Field((), description="variables, or options, that have the defect")
    value: Pattern = Field("", description="only with a value in which this is found")
    command: Pattern = Field("", description="only for programs, or command lines, that begin with this")
    needs: tuple[Pattern, ...] = Field((), description="only when the command line has each of these")
    without: tuple[Pattern, ...] = Field((), description="only when the command line has none of these")
    says: Pattern = Field("", description="only when the document has this, in prose and comments too")
    unless: Pattern = Field("", description="only when the document has this nowhere, in prose and comments neither")
    inside: Literal["", "ray-job"] = Field("", description="only for commands that run there")
    outside: tuple[Literal["container", "image"], ...] = Field((), description="only for commands that run in none")
    how: Literal["", "dockerfile"] = Field("", description="only for variables that are set there")
    platform: Literal["", "vast", "autodl", "rented"] = Field("", description="only for a target that is rented there")
    region: Literal["", "cn"] = Field("", description="only for a target that stands there")
    check: Annotated[str, StringConstraints(pattern=r"^[a-z_]*$")] = Field("", description="code that finds it")
    renamed: dict[SingleLine, SingleLine] = Field({}, description="old name to new one")
    package: SingleLine = Field("", description="distribution whose version decides")
    works: Range = Field("", description="versions in which it works; every other one has the defect")
    warns: Range = Field("", description="versions in which it still works, but will not for long")
    fails: Range = Field("", description="the only versions with the defect; nothing is said where none is known")
    unknown: Severity | None = Field(None, description="severity where the version is not known")
    covers: tuple[DemandNumber, ...] = Field((), description="entries of the inventory of pits")
    source: tuple[SingleLine, ...] = Field(min_length=1)
    dated: datetime.date

    @model_validator(mode="after")
    def _can_be_matched(self) -> DriftRule:
        if not (self.check or self.names or self.command or self.renamed):
            raise ValueError(_("give names, command, renamed or check: nothing would be found"))
        if bool(self.works or self.warns or self.fails) > bool(self.package):
            raise ValueError(_("give package together with works, warns and fails"))
        return self

    def state(self, versions: Mapping[str, str]) -> State:
        """Return what the rule's package does in the versions at hand; `fails` for a rule without one."""
        if not (self.works or self.warns or self.fails):
            return "fails"
        try:
            version = Version(versions[self.package])
        except (KeyError, InvalidVersion):
            return "works" if self.fails else "unknown"
        if self.fails:
            return "fails" if SpecifierSet(self.fails).contains(version, prereleases=True) else "works"
        if self.works and SpecifierSet(self.works).contains(version, prereleases=True):
            return "works"
        return "warns" if self.warns and SpecifierSet(self.warns).contains(version, prereleases=True) else "fails"


class Drift(SpecModel):
    """The table."""

    rule: tuple[DriftRule, ...]

    @model_validator(mode="after")
    def _ids_differ(self) -> Drift:
        ids = [rule.id for rule in self.rule]
        if twice := sorted({one for one in ids if ids.count(one) > 1}):
            raise ValueError("\n".join(f"two rules have the id {one!r}" for one in twice))
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
    """Where a rule found its defect; `begin` is where the command begins that it is in, `fields` fill the texts."""

    start: int
    begin: int = -1
    within: frozenset[str] = frozenset()
    fields: Mapping[str, str] = field(default_factory=dict)


Check = Callable[[Document, DriftRule, MachineInfo], Iterable[Hit]]


def make_call_hit(call: Call, start: int | None = None, **fields: str) -> Hit:
    """Return a hit in a call, at its beginning unless `start` says where."""
    outer = call
    while outer.outer:
        outer = outer.outer
    return Hit(start=call.start if start is None else start, begin=outer.start, within=call.within, fields=fields)


def make_setting_hit(setting: Setting) -> Hit:
    """Return a hit at a setting."""
    return Hit(start=setting.start, within=setting.within, fields={"name": setting.name, "value": setting.value})
