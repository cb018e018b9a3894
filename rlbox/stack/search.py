"""An exact search for versions that fit together: small tables, so no heuristics but what narrows the choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlbox.stack.compat import Condition, Fact

Domains = dict[str, tuple[str, ...]]
"""What each name may be: versions, the preferred first; an empty text says that it is not there."""


def solve(domains: Mapping[str, tuple[str, ...]], rules: Sequence[Fact]) -> dict[str, str] | None:
    """Return a version for each name so that every rule holds, or None when there is none.

    Earlier versions of a domain are preferred; nothing is chosen before everything that follows from the rest is drawn.
    """
    narrowed = _narrow(dict(domains), rules)
    if narrowed is None:
        return None
    first = {name: versions[0] for name, versions in narrowed.items()}
    broken = next((rule for rule in rules if not _kept(rule, first)), None)
    if broken is None:
        return first
    name = _choice(broken, narrowed)
    for version in narrowed[name]:
        if found := solve({**narrowed, name: (version,)}, rules):
            return found
    return None


def _kept(rule: Fact, values: Mapping[str, str]) -> bool:
    if not all(condition.holds(values[condition.name]) for condition in rule.when):
        return True
    return any(all(condition.holds(values[condition.name]) for condition in row) for row in rule.rows)


def _choice(rule: Fact, domains: Domains) -> str:
    """Return the name to choose a version for: the one of a broken rule that leaves the fewest."""
    open_ = {condition.name for condition in rule.conditions() if len(domains[condition.name]) > 1}
    return min(sorted(open_), key=lambda name: len(domains[name]))


def _narrow(domains: Domains, rules: Sequence[Fact]) -> Domains | None:
    """Take out what no solution can have, until nothing more follows; None when a name has no version left."""
    if not all(domains.values()):
        return None
    changed = True
    while changed:
        changed = False
        for rule in rules:
            cut = _cut(rule, domains)
            if cut is None:
                return None
            for name, versions in cut.items():
                if not versions:
                    return None
                domains[name], changed = versions, True
    return domains


def _cut(rule: Fact, domains: Domains) -> Domains | None:
    """Return the domains that a rule makes smaller; None when it cannot be kept."""
    open_ = []
    for condition in rule.when:
        held = [condition.holds(version) for version in domains[condition.name]]
        if not any(held):
            return {}
        if not all(held):
            open_.append(condition)
    alive = [row for row in rule.rows if all(any(map(one.holds, domains[one.name])) for one in row)]
    if not open_:
        return _enforced(alive, domains) if alive else None
    if not alive and len(open_) == 1:
        name = open_[0].name
        return {name: tuple(v for v in domains[name] if not open_[0].holds(v))}
    return {}


def _enforced(rows: Sequence[tuple[Condition, ...]], domains: Domains) -> Domains:
    """Return the smaller domains of the names that every row speaks of."""
    names = set.intersection(*({condition.name for condition in row} for row in rows))
    cut = {}
    for name in sorted(names):
        kept = tuple(v for v in domains[name] if any(_takes(row, name, v) for row in rows))
        if kept != domains[name]:
            cut[name] = kept
    return cut


def _takes(row: tuple[Condition, ...], name: str, version: str) -> bool:
    return all(condition.holds(version) for condition in row if condition.name == name)
