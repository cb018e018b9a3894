"""Variables, flags, ports and commands that no longer work, or never did: the schema of `drift.toml`."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import Field

from rlbox.config.schema import Name, SingleLine, SpecModel, validate_spec
from rlbox.config.toml_files import load_toml
from rlbox.i18n import _, join
from rlbox.target.target import Pattern

TABLE = Path(__file__).with_name("drift.toml")
Severity = Literal["error", "warning", "note"]


class Matcher(SpecModel):
    """What is looked for; or, where that takes more, the code named in `check`."""

    kind: Literal["variable", "flag", "port", "command", "shell", "path", "python", "image"]
    names: tuple[SingleLine, ...] = Field((), description="variables, or options, that have the defect")
    name: Pattern = Field("", description="the same as an expression that the whole name fits")
    renamed: dict[SingleLine, SingleLine] = Field({}, description="old name to new one")
    value: Pattern = Field("", description="only with a value in which this is found")
    literal: bool = Field(False, description="the value is looked at as it is written, variables not put in")
    command: Pattern = Field("", description="only for programs, or command lines, that begin with this")
    needs: tuple[Pattern, ...] = Field((), description="only when the command line has each of these")
    without: tuple[Pattern, ...] = Field((), description="only when the command line has none of these")
    word: Pattern = Field("", description="words of the command, with their quotes, in which this is found")
    statement: Pattern = Field("", description="only when this is in the pipeline's source; `value` in it is the place")
    text: Pattern = Field("", description="found in a whole shell text; its part `value` is the place")
    inside: str = Field("", description="only for commands with these context_tags: see `Call.context_tags`")
    outside: tuple[str, ...] = Field((), description="only for commands with none of these context_tags")
    how: Literal["", "dockerfile"] = Field("", description="only for variables that are set there")
    check: str = Field("", description="code that finds it")
    once: bool = Field(False, description="one finding a file, with all lines")


class DriftRule(Matcher):
    """One defect, the versions that have it, and the form that works."""

    id: Name
    what: SingleLine = Field(description="what is wrong; {name}, {value} and other fields are put in, a brace is {{")
    next: SingleLine = Field(description="the form that works; the same fields are put in")
    severity: Severity = "error"
    also: tuple[Matcher, ...] = Field((), description="what else has the defect")
    says: Pattern = Field("", description="only when the document has this, in comments too")
    unless: Pattern = Field("", description="only when the document has this nowhere, in comments neither")
    package: SingleLine = Field("", description="distribution whose version decides")
    works: str = Field("", description="versions in which it works; every other one has the defect")
    warns: str = Field("", description="versions in which it still works, but will not for long")
    fails: str = Field("", description="the only versions with the defect; nothing is said where none is known")
    unknown: Severity | None = Field(None, description="severity where the version is not known")
    numbers: dict[str, SingleLine] = Field({}, description="of a formula: the options of each, `=` and a default")
    holds: str = Field("", description="formula over the numbers that must be true")
    source: tuple[SingleLine, ...] = ()
    dated: datetime.date

    def judge_pinned_version(self, pinned_versions: Mapping[str, str]) -> Literal["works", "warns", "fails", "unknown"]:
        """Return what the rule's package does in the versions at hand; `fails` for a rule without one."""
        if not (self.works or self.warns or self.fails):
            return "fails"
        try:
            version = Version(pinned_versions[self.package])
        except (KeyError, InvalidVersion):
            return "works" if self.fails else "unknown"

        def covers(versions: str) -> bool:
            return bool(versions) and SpecifierSet(versions).contains(version, prereleases=True)

        if self.fails:
            return "fails" if covers(self.fails) else "works"
        return "works" if covers(self.works) else "warns" if covers(self.warns) else "fails"

    def format_versions_suffix_or_empty(self, pinned_versions: Mapping[str, str]) -> str:
        """Return in which versions it works, as far as that decides."""
        ranges = {
            _("not with {package} {versions}"): self.fails,
            _("works with {package} {versions}"): self.works,
            _("with a warning, {package} {versions}"): self.works and self.warns,
            _("still accepted by {package} {versions}"): "" if self.works else self.warns,
        }
        parts = [text.format(package=self.package, versions=found) for text, found in ranges.items() if found]
        if parts and self.package in pinned_versions:
            parts.append(_("and here it is {version}").format(version=pinned_versions[self.package]))
        return _(" ({parts})").format(parts=join(", ", parts)) if parts else ""


@cache
def load_drift_rules() -> tuple[DriftRule, ...]:
    return tuple(validate_spec(DriftRule, row, f"{TABLE}: {row.get('id')}") for row in load_toml(TABLE)["rule"])
