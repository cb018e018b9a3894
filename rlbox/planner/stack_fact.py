"""A fact of what fits together, and the conditions that it is made of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Annotated

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from rlbox.config.schema import Frozen, Name
from rlbox.i18n import _

_CONDITION = re.compile(r"(?P<absent>!?)(?P<name>[a-z0-9][a-z0-9-]*)(?P<range>[<>=!~].*)?")


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One thing that holds or not: `name` is there in a version of `range`, or is not there at all."""

    name: str
    range: str = ""
    absent: bool = False

    def __str__(self) -> str:
        return f"{'!' * self.absent}{self.name}{self.range}"

    def holds(self, version: str) -> bool:
        """Return whether it holds for a version; an empty one says that `name` is not there."""
        if not version or self.absent:
            return self.absent and not version
        return not self.range or within(self.range, version)


@cache
def within(versions: str, version: str) -> bool:
    """Return whether a version is in a range; the local part of a version (`+cu128`) is not looked at."""
    return SpecifierSet(versions).contains(Version(version).public, prereleases=True)


def parse_condition(text: str) -> Condition:
    """Return the condition that `NAME`, `!NAME` or `NAME` with a version range means; `ValueError` for all else."""
    found = _CONDITION.fullmatch(text)
    if not found or (found["absent"] and found["range"]):
        raise ValueError(_("{text!r} is no condition: NAME, !NAME, or NAME with a version range").format(text=text))
    try:
        SpecifierSet(found["range"] or "")
    except InvalidSpecifier as error:
        raise ValueError(_("{text!r}: {error}").format(text=text, error=error)) from error
    return Condition(name=found["name"], range=found["range"] or "", absent=bool(found["absent"]))


def _version(text: str) -> str:
    return str(Version(text)) and text


Clause = Annotated[Condition, BeforeValidator(lambda one: parse_condition(one) if isinstance(one, str) else one)]
VersionText = Annotated[str, AfterValidator(_version)]


class Fact(Frozen):
    """When all of `when` holds, all of `needs` must hold, or all of one row of `any`; the rules of the solver."""

    id: Name
    says: str = Field("", description="in a sentence; empty: the conditions say it all")
    when: tuple[Clause, ...] = Field(min_length=1)
    needs: tuple[Clause, ...] = ()
    any: tuple[tuple[Clause, ...], ...] = ()
    source: str = Field(min_length=1)

    @model_validator(mode="after")
    def _one_form(self) -> Fact:
        if bool(self.needs) == bool(self.any):
            raise ValueError(_("set exactly one of needs and any"))
        return self

    @property
    def rows(self) -> tuple[tuple[Condition, ...], ...]:
        """The rows of which one must hold."""
        return self.any or (self.needs,)

    def conditions(self) -> tuple[Condition, ...]:
        """Return every condition."""
        return (*self.when, *(condition for row in self.rows for condition in row))
