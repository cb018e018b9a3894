"""What the solver found: a set that fits, or the smallest set of facts that contradict each other and a way out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, TypeVar

from rlbox.app import App, own_requirements
from rlbox.errors import SpecError, get_docs_url
from rlbox.i18n import _
from rlbox.planner.stack_facts import MACHINE, StackProblem, UnknownVersion, VersionConstraint
from rlbox.planner.stack_solver import Fact, solve

if TYPE_CHECKING:
    from rlbox.planner.stack_facts import StackProblem
    from rlbox.target.lock import Lock
    from rlbox.target.target import Target


_MOST_TRIED = 80
_Row = TypeVar("_Row", VersionConstraint, Fact)


@dataclass(frozen=True, kw_only=True)
class VersionChange:
    """A way out: name to the version that takes the place of what the spec says; empty: it is left out.

    The version of `default` is that of the CUDA that torch is to be built with. `distance` counts the versions
    in between.
    """

    new_versions: tuple[tuple[str, str], ...]
    distance: int


@dataclass(frozen=True, kw_only=True)
class StackVerdict:
    """How a target's stack stands.

    Attributes
    ----------
    versions
        Name to version of a set that fits, with what the target fixes; empty when it contradicts itself.
    conflicting_constraints, conflicting_facts
        The contradiction: leave out any one of these and the rest fits.
    proposed_changes
        Ways out, the nearest first.
    """

    versions: dict[str, str]
    conflicting_constraints: tuple[VersionConstraint, ...] = ()
    conflicting_facts: tuple[Fact, ...] = ()
    proposed_changes: tuple[VersionChange, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether nothing contradicts."""
        return not self.conflicting_facts and not self.conflicting_constraints


def solve_problem(problem: StackProblem) -> StackVerdict:
    """Return how what a target fixes stands to the facts, with the ways out of a contradiction.

    What no version can repair comes first: a machine or a base whose own properties contradict each other.
    """
    values = solve(problem.domains(problem.wishes), problem.rules)
    if values is not None:
        return StackVerdict(versions=values)
    given = replace(problem, wishes=tuple(wish for wish in problem.wishes if not wish.own))
    if solve(given.domains(given.wishes), given.rules) is None:
        rules, wishes = _clash(given)
        movable = replace(given, wishes=tuple(replace(wish, own=True) for wish in given.wishes))
        changes = _changes(movable, [replace(wish, own=True) for wish in wishes], fixed=("arch", "datacenter", "glibc"))
    else:
        rules, wishes = _clash(problem)
        changes = _changes(problem, wishes, fixed=MACHINE)
    return StackVerdict(versions={}, conflicting_constraints=wishes, conflicting_facts=rules, proposed_changes=changes)


def _clash(problem: StackProblem) -> tuple[tuple[Fact, ...], tuple[VersionConstraint, ...]]:
    named = {
        wish.name for wish in problem.wishes
    }  # facts that speak of nothing else explain best: what is last is kept
    facts = sorted(problem.rules, key=lambda fact: named.issuperset(one.name for one in fact.conditions()))
    rules = _smallest(facts, lambda rows: solve(problem.domains(problem.wishes), rows) is None)
    return rules, _smallest(problem.wishes, lambda rows: solve(problem.domains(rows), rules) is None)


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


def _changes(
    problem: StackProblem, clash: Iterable[VersionConstraint], *, fixed: Sequence[str]
) -> tuple[VersionChange, ...]:
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
            return tuple(sorted(found, key=lambda change: (change.distance, change.new_versions)))
    return ()


def _change(problem: StackProblem, names: tuple[str, ...], absent: bool) -> VersionChange | None:
    """Return the nearest versions of `names` with which all the rest fits, each of them another than before."""
    domains = problem.domains([wish for wish in problem.wishes if wish.name not in names or not wish.own])
    before = problem.domains(problem.wishes)
    for name in names:
        offered = [
            one
            for one in domains[name]
            if one in problem.versions_with_facts.get(name, ()) or not problem.versions_with_facts.get(name)
        ]
        domains[name] = tuple(_near(problem.versions[name], before[name], tuple(offered), absent))
    if "cuda" in names and domains["default"] == ("",):
        # a build with CUDA in the place of one without: of a channel that torch has, with all that comes with it
        domains |= {"default": ("0",), "abi": problem.versions["abi"], "nccl": problem.versions["nccl"]}
    if not all(domains.values()) or (free := solve(domains, problem.rules)) is None:
        return None
    if "nvcc" in names and free["cuda"] in domains["nvcc"]:
        domains["nvcc"] = (free["cuda"],)  # of the versions that would do, that of torch
    ways = sorted(product(*(enumerate(domains[name]) for name in names)), key=lambda way: sum(at for at, __ in way))
    for way in ways[:_MOST_TRIED]:
        fixed = {name: (version,) for name, (__, version) in zip(names, way, strict=True)}
        if values := solve({**domains, **fixed}, problem.rules):
            return VersionChange(new_versions=_to(names, values), distance=sum(at for at, __ in way))
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


_MOST_SHOWN = 9

_TITLES = {
    "abi": "C++11 ABI",
    "arch": "GPU architecture",
    "cuda": "CUDA of torch",
    "cuda-compat": "forward compatibility",
    "datacenter": "data-centre GPU",
    "default": "torch of the package index",
    "driver": "driver branch",
    "glibc": "glibc",
    "nccl": "NCCL",
    "nvcc": "CUDA compiler",
    "python": "Python",
}


def _title(name: str) -> str:
    return _TITLES.get(name) or name


def stack_json(problem: StackProblem, verdict: StackVerdict) -> dict[str, Any]:
    return {
        "fits": None if verdict.fits and problem.unknown else verdict.fits,
        "unknown": [asdict(one) for one in problem.unknown],
        "versions": {name: version for name, version in verdict.versions.items() if version},
        "fixed": {wish.name: {"range": wish.range, "where": wish.where} for wish in problem.wishes},
        "facts": sorted(rule.id for rule in _applied(problem, verdict)),
        "clash": [{"name": w.name, "range": w.range, "where": w.where} for w in verdict.conflicting_constraints]
        + [{"fact": fact.id, "says": _sentence(fact), "source": fact.source} for fact in verdict.conflicting_facts],
        "changes": [dict(change.new_versions) for change in verdict.proposed_changes],
    }


def format_stack_verdict(target_name: str, problem: StackProblem, verdict: StackVerdict, spec_alone: bool) -> str:
    """Return the verdict as lines: the versions and the facts that were looked at, or the contradiction."""
    unknown = [f"  {line}" for line in unknown_version_lines(problem)]
    if not verdict.fits:
        lines = [f"{target_name}  no solution, because these contradict each other:", *conflict_lines(verdict)]
        lines += unknown
        return "\n".join([*lines, f"nearest change: {format_changes_resolving_conflict(target_name, verdict)}"])
    where = {wish.name: wish.where for wish in problem.wishes}
    shown = [n for n, v in verdict.versions.items() if v and (n in where or n in _drawn(problem, verdict))]
    rows = [f"  {_title(n).ljust(28)} {verdict.versions[n]:<16} {where.get(n, 'follows')}" for n in shown]
    applied = sorted(_applied(problem, verdict), key=lambda fact: fact.id)
    kept = [f"  {_sentence(fact)}  [{fact.source}]" for fact in applied]
    head = "a set that fits" if spec_alone else "fits together"
    said = f"{head}, as far as 1 fact says" if len(applied) == 1 else f"{head}, as far as {len(applied)} facts say"
    said = "nothing contradicts, but not all versions are known" if unknown else said
    return "\n".join([f"{target_name}  {said}", *unknown, *rows, "facts:", *kept])


def unknown_version_lines(problem: StackProblem) -> list[str]:
    """Return a line for each version that is not known."""
    return [
        f"not known: {one.name} {one.version} (known: {', '.join(_shown_versions(one))})" for one in problem.unknown
    ]


def _shown_versions(unknown: UnknownVersion) -> list[str]:
    """Return the known versions, of many the newest and the oldest."""
    known = [*unknown.known]
    return known if len(known) <= _MOST_SHOWN else [*known[: _MOST_SHOWN - 1], "…", known[-1]]


def conflict_lines(verdict: StackVerdict) -> list[str]:
    """Return the contradiction: what the target says, then the facts, each with its source."""
    said = [f"{_title(w.name)} {w.range or 'none'}  ({w.where})" for w in verdict.conflicting_constraints]
    return said + [f"{_sentence(fact)}  [{fact.id}: {fact.source}]" for fact in verdict.conflicting_facts]


def format_changes_resolving_conflict(target_name: str, verdict: StackVerdict) -> str:
    """Return the nearest changes, or how to leave a fact out."""
    ways = [_change_text(change) for change in verdict.proposed_changes[:3]]
    facts = ", ".join(rule.id for rule in verdict.conflicting_facts)
    off = _("a fact that is wrong here ({facts}) goes into [compat.off] of the spec with the reason").format(
        facts=facts
    )
    others = "".join(f"; or else {way}" for way in ways[1:])
    return (
        _("{way}{others}; {off}").format(way=ways[0], others=others, off=off)
        if ways
        else _(
            "no change of three versions helps: leave versions of the spec open, then rlbox stack {name} --solve; {off}"
        ).format(name=target_name, off=off)
    )


def _change_text(change: VersionChange) -> str:
    first, *more = (_one_change(name, version) for name, version in change.new_versions)
    return first + "".join(f", and {one}" for one in more)


def _one_change(name: str, version: str) -> str:
    match name:
        case "default" | "cuda":
            channel = f"cu{version.replace('.', '')}"
            return (
                f'take torch from a channel of the torch wheel index (source = "torch-wheels", channel = "{channel}")'
            )
        case "nvcc":
            return _compiler(version) if version else "take the CUDA compiler out"
        case "flashinfer-jit-cache" if version:
            return f"add the wheel of flashinfer-jit-cache {version} by address and checksum ([[stack.wheels]])"
        case "driver":
            return f"take a machine with driver {version} or newer, and set hardware.cuda_driver to what it takes"
        case "cuda-compat" if version:
            return f"put cuda-compat-{version.replace('.', '-')} into base.packages"
        case _ if name.endswith("-compiled") and version:
            return f"compile {name.removesuffix('-compiled')} beforehand ([[stack.compile]], {get_docs_url('compile')})"
        case _ if not version:
            return f"leave out {name}"
        case _:
            return f"set {_title(name)} to {version}"


def _compiler(cuda: str) -> str:
    if int(cuda.split(".")[0]) < 13:  # its wheel has ptxas alone
        return (
            f"take a base image that has the compiler of CUDA {cuda} (a devel image), or what is compiled as published "
            "wheels by checksum ([[stack.wheels]])"
        )
    names = "nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-crt, nvidia-cuda-cccl and nvidia-cuda-runtime"
    return f"put {names} of CUDA {cuda} into a group of the stack: they are a whole compiler"


def _sentence(fact: Fact) -> str:
    return fact.says or f"{' + '.join(map(str, fact.when))} wants {', '.join(map(str, fact.needs))}"


def _applied(problem: StackProblem, verdict: StackVerdict) -> Iterator[Fact]:
    """Yield the rules whose conditions hold in the solution."""
    for rule in problem.rules:
        if verdict.versions and all(c.holds(verdict.versions[c.name]) for c in rule.when):
            yield rule


def _drawn(problem: StackProblem, verdict: StackVerdict) -> set[str]:
    return {c.name for rule in _applied(problem, verdict) for c in rule.conditions() if c.name not in MACHINE}


def require_consistent_stack(app: App, target_name: str, *, force: bool = False) -> str:
    """Refuse a target whose spec and lock contradict each other or themselves, and say which versions are not known."""
    with app.collecting_refusals_if_dry_run("stack"):
        return require_no_conflict(app, *load_target_and_current_lock(app, target_name), force=force)
    return ""


def require_no_conflict(app: App, target: Target, lock: Lock | None, *, force: bool = False) -> str:
    """Raise `SpecError` when a target contradicts itself; with `force` say so."""
    problem = plan_stack(target, lock)
    verdict = solve_problem(problem)
    for line in unknown_version_lines(problem):
        app.print_status(line)
    if verdict.fits:
        return ""
    lines = conflict_lines(verdict)
    if force:
        app.print_status(f"warning: the stack of target {target.name} contradicts itself: {'; '.join(lines)}")
        return "; ".join(map(str, lines))
    raise SpecError(
        "\n  ".join((f"the stack of target {target.name} contradicts itself:", *lines)),
        where=f"images/{target.name}/target.toml",
        next_step=format_changes_resolving_conflict(target.name, verdict),
    )


def load_target_and_current_lock(app: App, target_name: str, *, spec_alone: bool = False) -> tuple[Target, Lock | None]:
    """Return a target and its lock; no lock where there is none, where it is stale, and with `spec_alone`."""
    from rlbox.fixes.catalogue import load_target_with_fix_packages
    from rlbox.target.lock import compute_lock_spec_checksum, load_lock

    target = load_target_with_fix_packages(app.project, target_name).target
    lock = None if spec_alone else load_lock(app.project.own_or_shipped_lock_file(target_name))
    if lock and lock.spec != compute_lock_spec_checksum(target, own_requirements()):
        lock = None
    return target, lock


def plan_stack(target: Target, lock: Lock | None) -> StackProblem:
    """Return the question that a target puts to the solver; `SpecError` when it leaves out a fact that is not there."""
    from rlbox.config.schema import suggest_similar
    from rlbox.planner.stack_facts import load_compat, plan_problem

    table = load_compat()
    ids = [fact.id for fact in table.table_and_metadata_facts()]
    if unknown := sorted(set(target.compat.off) - set(ids)):
        raise SpecError(
            _("compat.off: there is no fact {unknown!r}{suggest}").format(
                unknown=unknown[0], suggest=suggest_similar(unknown[0], ids)
            ),
            where=f"images/{target.name}/target.toml",
            next_step=_("correct the name, or remove the line"),
        )
    return plan_problem(table, target, lock)
