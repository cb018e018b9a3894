"""A fact of what fits together, and the conditions that it is made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from rlbox.config.schema import Name, SpecModel
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
        return not self.range or is_in_range(self.range, version)


@cache
def is_in_range(versions: str, version: str) -> bool:
    """Return whether a version is in a range; the local part of a version (`+cu128`) is not looked at."""
    return SpecifierSet(versions).contains(Version(version).public, prereleases=True)


def parse_condition(text: str) -> Condition:
    """Return the condition that `NAME`, `!NAME` or `NAME` with a version range means; `ValueError` for all else."""
    found = _CONDITION.fullmatch(text)
    if not found or (found["absent"] and found["range"]):
        raise ValueError(_("{text!r} is not a condition: NAME, !NAME, or NAME with a version range").format(text=text))
    try:
        SpecifierSet(found["range"] or "")
    except InvalidSpecifier as error:
        raise ValueError(_("{text!r}: {error}").format(text=text, error=error)) from error
    return Condition(name=found["name"], range=found["range"] or "", absent=bool(found["absent"]))


def _version(text: str) -> str:
    return str(Version(text)) and text


Clause = Annotated[Condition, BeforeValidator(lambda one: parse_condition(one) if isinstance(one, str) else one)]
VersionText = Annotated[str, AfterValidator(_version)]


class Fact(SpecModel):
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
    def satisfying_alternatives(self) -> tuple[tuple[Condition, ...], ...]:
        """The rows of which one must hold."""
        return self.any or (self.needs,)

    def conditions(self) -> tuple[Condition, ...]:
        return (*self.when, *(condition for row in self.satisfying_alternatives for condition in row))


Domains = dict[str, tuple[str, ...]]
"""What each name may be: versions, the preferred first; an empty text says that it is not there."""

_Masks = dict[str, int]
"""Name to the versions of its domain that are left, a bit each."""
_Term = tuple[str, int]
"""A name, and the versions of its domain with which a condition holds."""


class _Rule:
    """A fact over given domains."""

    __slots__ = ("common", "names", "rows", "when")

    def __init__(self, fact: Fact, domains: Mapping[str, tuple[str, ...]]) -> None:
        self.when = [(one.name, _holding(one, domains[one.name])) for one in fact.when]
        self.rows = [
            _merged((one.name, _holding(one, domains[one.name])) for one in row) for row in fact.satisfying_alternatives
        ]
        self.common = sorted(set.intersection(*(set(row) for row in self.rows)))
        self.names = dict.fromkeys([name for name, __ in self.when] + [name for row in self.rows for name in row])

    def is_kept(self, values: _Masks) -> bool:
        """Return whether it holds for one version of each name."""
        if not all(values[name] & mask for name, mask in self.when):
            return True
        return any(all(values[name] & mask for name, mask in row.items()) for row in self.rows)

    def cut(self, left: _Masks) -> list[_Term] | None:
        """Return what it leaves of some domains; None when it cannot be kept."""
        open_: _Term | None = None
        for name, mask in self.when:
            there = left[name]
            if not there & mask:
                return []
            if there & ~mask:
                if open_ is not None:
                    return []
                open_ = name, mask
        alive = [row for row in self.rows if all(left[name] & mask for name, mask in row.items())]
        if open_ is None:
            return self._enforced(alive) if alive else None
        return [] if alive else [(open_[0], ~open_[1])]

    def _enforced(self, alive: Sequence[Mapping[str, int]]) -> list[_Term]:
        names = self.common if len(alive) == len(self.rows) else sorted(set.intersection(*(set(row) for row in alive)))
        found = []
        for name in names:
            mask = 0
            for row in alive:
                mask |= row[name]
            found.append((name, mask))
        return found


@cache
def _holding(condition: Condition, versions: tuple[str, ...]) -> int:
    return sum(1 << at for at, version in enumerate(versions) if condition.holds(version))


def _merged(terms: Iterable[_Term]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, mask in terms:
        found[name] = found.get(name, -1) & mask
    return found


def solve(domains: Mapping[str, tuple[str, ...]], rules: Sequence[Fact]) -> dict[str, str] | None:
    """Return a version for each name so that every rule holds, or None when there is none.

    Earlier versions of a domain are preferred; nothing is chosen before everything that follows from the rest is drawn.
    """
    left = {name: (1 << len(versions)) - 1 for name, versions in domains.items()}
    if not all(left.values()):
        return None
    compiled = [_Rule(fact, domains) for fact in rules]
    users: dict[str, list[_Rule]] = {name: [] for name in domains}
    for rule in compiled:
        for name in rule.names:
            users[name].append(rule)
    found = _search(left, compiled, users, compiled)
    return None if found is None else {name: domains[name][_first(mask)] for name, mask in found.items()}


def _first(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _search(
    left: _Masks, rules: Sequence[_Rule], users: Mapping[str, Sequence[_Rule]], due: Iterable[_Rule]
) -> _Masks | None:
    """Return one version for each name; `due` are the rules to look at first."""
    narrowed = _narrow(dict(left), users, due)
    if narrowed is None:
        return None
    first = {name: mask & -mask for name, mask in narrowed.items()}
    broken = next((rule for rule in rules if not rule.is_kept(first)), None)
    if broken is None:
        return first
    open_ = sorted(name for name in broken.names if narrowed[name] & (narrowed[name] - 1))
    name = min(open_, key=lambda one: narrowed[one].bit_count())
    rest = narrowed[name]
    while rest:
        bit = rest & -rest
        rest ^= bit
        if found := _search({**narrowed, name: bit}, rules, users, users[name]):
            return found
    return None


def _narrow(left: _Masks, users: Mapping[str, Sequence[_Rule]], due: Iterable[_Rule]) -> _Masks | None:
    """Take out what no solution can have, until nothing more follows; None when a name has no version left."""
    waiting = dict.fromkeys(due)
    while waiting:
        rule = next(iter(waiting))
        del waiting[rule]
        cuts = rule.cut(left)
        if cuts is None:
            return None
        for name, mask in cuts:
            now = left[name] & mask
            if not now:
                return None
            if now != left[name]:
                left[name] = now
                waiting |= dict.fromkeys(users[name])
    return left
