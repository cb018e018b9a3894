"""A fact of what fits together, the conditions that it is made of, and the search for versions that keep all facts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from operator import or_
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version

_CONDITION = re.compile(r"(!?)([a-z0-9][a-z0-9\[\]-]*)([<>=!~].*)?")


class Condition(NamedTuple):
    """One thing that holds or not: `name` is there in a version of `range`, or is not there at all."""

    name: str
    version_range: str = ""
    must_be_absent: bool = False

    def __str__(self) -> str:
        return f"{'!' * self.must_be_absent}{self.name}{self.version_range}"

    def holds(self, version_or_empty: str) -> bool:
        if not version_or_empty or self.must_be_absent:
            return self.must_be_absent and not version_or_empty
        return not self.version_range or is_public_version_in_range(self.version_range, version_or_empty)


@cache
def is_public_version_in_range(version_range: str, version: str) -> bool:
    """Return whether a version is in a range; the local part of a version (`+cu128`) is not looked at."""
    return SpecifierSet(version_range).contains(Version(version).public, prereleases=True)


def parse_condition(condition_text: str) -> Condition:
    found = _CONDITION.fullmatch(condition_text)
    if not found:
        raise ValueError(f"{condition_text!r} is not a condition: NAME, !NAME, or NAME with a version range")
    return Condition(found[2], found[3] or "", must_be_absent=bool(found[1]))


@dataclass(frozen=True, kw_only=True)
class CompatFact:
    """When all of `when` holds, all conditions of one of `alternatives` must hold; `says` is the same in a sentence."""

    id: str
    when: tuple[Condition, ...]
    alternatives: tuple[tuple[Condition, ...], ...]
    source: str
    says: str = ""

    def when_and_alternative_conditions(self) -> tuple[Condition, ...]:
        return (*self.when, *(condition for row in self.alternatives for condition in row))


VersionsByName = Mapping[str, tuple[str, ...]]
"""What each name may be: versions, the preferred first; an empty text says that it is not there."""

_Masks = Mapping[str, int]
"""Name to the versions of its domain that are left, a bit each."""


class _Rule(NamedTuple):
    """A fact over given domains: of each condition the versions of its name with which it holds."""

    when: tuple[tuple[str, int], ...]
    alternatives: tuple[Mapping[str, int], ...]

    def narrow(self, left: _Masks) -> Mapping[str, int] | None:
        """Return what it leaves of some domains; None when it cannot be kept."""
        open_ = {name: mask for name, mask in self.when if left[name] & ~mask}
        if len(open_) > 1 or any(not left[name] & mask for name, mask in self.when):
            return {}
        alive = [row for row in self.alternatives if all(left[name] & mask for name, mask in row.items())]
        if open_:
            return {} if alive else {name: ~mask for name, mask in open_.items()}
        if not alive:
            return None
        common = set.intersection(*map(set, alive))
        return {name: reduce(or_, (row[name] for row in alive)) for name in common}

    def names(self) -> list[str]:
        return [name for name, __ in self.when] + [name for row in self.alternatives for name in row]


def _make_rule(fact: CompatFact, domains: VersionsByName) -> _Rule:
    rows: list[dict[str, int]] = []
    for conditions in fact.alternatives:
        row: dict[str, int] = {}
        for condition in conditions:
            row[condition.name] = row.get(condition.name, -1) & _mask(condition, domains[condition.name])
        rows.append(row)
    when = tuple((condition.name, _mask(condition, domains[condition.name])) for condition in fact.when)
    return _Rule(when, tuple(rows))


@cache
def _mask(condition: Condition, versions: tuple[str, ...]) -> int:
    return sum(1 << position for position, version in enumerate(versions) if condition.holds(version))


def solve(candidates: VersionsByName, facts: Sequence[CompatFact]) -> dict[str, str] | None:
    """Return a version for each name so that every fact holds, or None when there is none.

    Earlier versions of a domain are preferred; nothing is chosen before everything that follows from the rest is drawn.
    """
    left = {name: (1 << len(versions)) - 1 for name, versions in candidates.items()}
    if not all(left.values()):
        return None
    rules = [_make_rule(fact, candidates) for fact in facts]
    users: dict[str, list[_Rule]] = {name: [] for name in candidates}
    for rule in rules:
        for name in set(rule.names()):
            users[name].append(rule)
    found = _search(left, rules, users, rules)
    return None if found is None else {name: candidates[name][mask.bit_length() - 1] for name, mask in found.items()}


def _search(
    left: _Masks, rules: Sequence[_Rule], users: Mapping[str, Sequence[_Rule]], due: Sequence[_Rule]
) -> _Masks | None:
    """Return one version for each name; `due` are the rules to look at first."""
    narrowed = _narrow(left, users, due)
    if narrowed is None:
        return None
    first = {name: mask & -mask for name, mask in narrowed.items()}
    broken = next((rule for rule in rules if rule.narrow(first) is None), None)
    if broken is None:
        return first
    name = min(
        (name for name in sorted(broken.names()) if narrowed[name] & (narrowed[name] - 1)),
        key=lambda name: narrowed[name].bit_count(),
    )
    rest = narrowed[name]
    while rest:
        bit = rest & -rest
        rest ^= bit
        if found := _search({**narrowed, name: bit}, rules, users, users[name]):
            return found
    return None


def _narrow(left: _Masks, users: Mapping[str, Sequence[_Rule]], due: Sequence[_Rule]) -> _Masks | None:
    """Take out what no solution can have, until nothing more follows; None when a name has no version left."""
    narrowed, waiting = dict(left), list(due)
    while waiting:
        cuts = waiting.pop().narrow(narrowed)
        if cuts is None:
            return None
        for name, mask in cuts.items():
            now = narrowed[name] & mask
            if not now:
                return None
            if now != narrowed[name]:
                narrowed[name] = now
                waiting += users[name]
    return narrowed
