"""What the solver found: a set that fits, or the smallest set of facts that contradict each other and a way out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import TypeVar

from rlbox.planner.stack_fact import Fact
from rlbox.planner.stack_facts import MACHINE, Problem, Wish
from rlbox.planner.stack_search import solve

_MOST_TRIED = 80
_Row = TypeVar("_Row", Wish, Fact)


@dataclass(frozen=True, kw_only=True)
class WayOut:
    """A way out: name to the version that takes the place of what the spec says; empty: it is left out.

    The version of `default` is that of the CUDA that torch is to be built with. `far` counts the versions in between.
    """

    to: tuple[tuple[str, str], ...]
    far: int


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a target's stack stands.

    Attributes
    ----------
    values
        Name to version of a set that fits, with what the target fixes; empty when it contradicts itself.
    clash_wishes, clash_rules
        The contradiction: leave out any one of these and the rest fits.
    changes
        Ways out, the nearest first.
    """

    values: dict[str, str]
    clash_wishes: tuple[Wish, ...] = ()
    clash_rules: tuple[Fact, ...] = ()
    changes: tuple[WayOut, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether nothing contradicts."""
        return not self.clash_rules and not self.clash_wishes


def judge(problem: Problem) -> Verdict:
    """Return how what a target fixes stands to the facts, with the ways out of a contradiction.

    What no version can repair comes first: a machine or a base whose own properties contradict each other.
    """
    values = solve(problem.domains(problem.wishes), problem.rules)
    if values is not None:
        return Verdict(values=values)
    given = replace(problem, wishes=tuple(wish for wish in problem.wishes if not wish.own))
    if solve(given.domains(given.wishes), given.rules) is None:
        rules, wishes = _clash(given)
        movable = replace(given, wishes=tuple(replace(wish, own=True) for wish in given.wishes))
        changes = _changes(movable, [replace(wish, own=True) for wish in wishes], fixed=("arch", "datacenter", "glibc"))
    else:
        rules, wishes = _clash(problem)
        changes = _changes(problem, wishes, fixed=MACHINE) or _all_open(problem)
    return Verdict(values={}, clash_wishes=wishes, clash_rules=rules, changes=changes)


def _clash(problem: Problem) -> tuple[tuple[Fact, ...], tuple[Wish, ...]]:
    rules = _smallest(problem.rules, lambda rows: solve(problem.domains(problem.wishes), rows) is None)
    return rules, _smallest(problem.wishes, lambda rows: solve(problem.domains(rows), rules) is None)


def _all_open(problem: Problem) -> tuple[WayOut, ...]:
    """Return one change of as many packages as it takes; none when not even that helps."""
    open_ = [replace(wish, range=">=0") if wish.own and wish.range else wish for wish in problem.wishes]
    for at, wish in enumerate(problem.wishes):
        pinned = [*open_[:at], wish, *open_[at + 1 :]]
        open_ = pinned if solve(problem.domains(pinned), problem.rules) else open_
    before = problem.domains(problem.wishes)
    domains = problem.domains(open_)
    near = {
        name: (
            *(version for version in before[name] if version in versions),
            *_near(problem.versions[name], before[name], versions, absent=False),
        )
        for name, versions in domains.items()
        if "" not in versions
    }
    values = solve({**domains, **near}, problem.rules)
    if values is None:
        return ()
    moved = [name for name in near if values[name] not in before[name] and name not in (*MACHINE, "cuda")]
    return (WayOut(to=_to(moved, values), far=len(moved)),)


def _to(names: Iterable[str], values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, values["cuda"] if name == "default" else values[name]) for name in names)


def _smallest(rows: Sequence[_Row], clashes: Callable[[Sequence[_Row]], bool]) -> tuple[_Row, ...]:
    """Return rows of which none can be left out without the contradiction going away."""
    kept = list(rows)
    step = max(1, len(kept) // 2)
    while True:
        start = 0
        while start < len(kept):
            rest = kept[:start] + kept[start + step :]
            if clashes(rest):
                kept = rest
            else:
                start += step
        if step == 1:
            return tuple(kept)
        step = max(1, step // 2)


def _changes(problem: Problem, clash: Iterable[Wish], *, fixed: Sequence[str]) -> tuple[WayOut, ...]:
    """Return the ways out with the fewest changes, the nearest first; leaving a package out is the last of them."""
    free = [name for name in dict.fromkeys(wish.name for wish in clash if wish.own) if name not in fixed]
    others = [name for name in dict.fromkeys(w.name for w in problem.wishes if w.own) if name not in (*free, *fixed)]
    for count, absent in ((1, False), (2, False), (1, True), (3, False), (2, True)):
        found = [
            change
            for names in combinations([*free, *others], count)
            if set(names) & set(free) and (change := _change(problem, names, absent))
        ]
        if found:
            return tuple(sorted(found, key=lambda change: (change.far, change.to)))
    return ()


def _change(problem: Problem, names: tuple[str, ...], absent: bool) -> WayOut | None:
    """Return the nearest versions of `names` with which all the rest fits, each of them another than before."""
    domains = problem.domains([wish for wish in problem.wishes if wish.name not in names or not wish.own])
    before = problem.domains(problem.wishes)
    for name in names:
        offered = [one for one in domains[name] if one in problem.known.get(name, ()) or not problem.known.get(name)]
        domains[name] = tuple(_near(problem.versions[name], before[name], tuple(offered), absent))
    if "cuda" in names and domains["default"] == ("",):
        # a build with CUDA in the place of one without: of a channel that torch has, with all that comes with it
        domains |= {"default": ("0",), "abi": problem.versions["abi"], "nccl": problem.versions["nccl"]}
    if not all(domains.values()) or (free := solve(domains, problem.rules)) is None:
        return None
    if "nvcc" in names and free["cuda"] in domains["nvcc"]:
        domains["nvcc"] = (free["cuda"],)  # of the versions that would do, that of torch
    ways = sorted(product(*(enumerate(domains[name]) for name in names)), key=lambda way: sum(at for at, _ in way))
    for way in ways[:_MOST_TRIED]:
        fixed = {name: (version,) for name, (_, version) in zip(names, way, strict=True)}
        if values := solve({**domains, **fixed}, problem.rules):
            return WayOut(to=_to(names, values), far=sum(at for at, _ in way))
    return None


def _near(order: tuple[str, ...], before: tuple[str, ...], allowed: tuple[str, ...], absent: bool) -> Iterator[str]:
    """Yield other versions than before, the nearest in the table first, the newer of two as near."""
    at = order.index(before[0]) if before and before[0] in order else 0
    yield from sorted(
        (version for version in order if version in allowed and version not in before),
        key=lambda version: (abs(order.index(version) - at), order.index(version)),
    )
    if absent and "" not in before:
        yield ""
