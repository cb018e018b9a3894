"""What the solver found: a set that fits, or the smallest set of facts that contradict each other and a way out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, TypeVar

from rlbox.amounts import pad_translated
from rlbox.app import App, list_rlbox_base_requirements
from rlbox.config.schema import did_you_mean_hint
from rlbox.errors import SpecError, get_main_docs_url
from rlbox.i18n import _, join, translate
from rlbox.planner.stack_facts import MACHINE, REBUILT, Constraint, StackProblem, build_stack_problem, load_compat_table
from rlbox.planner.stack_solver import CompatFact, solve

if TYPE_CHECKING:
    from rlbox.target.lock import Lock
    from rlbox.target.target import Target

_MAX_TRIED_VERSIONS = 80
_Item = TypeVar("_Item", Constraint, CompatFact)


NewVersions = tuple[tuple[str, str], ...]
"""A way out: name to the version that takes the place of what the spec says; empty: it is left out.

The version of `default` is that of the CUDA that torch is to be built with.
"""


@dataclass(frozen=True, kw_only=True)
class StackVerdict:
    """A set of versions that fits, with what the target fixes; or the contradiction, and ways out, the nearest first.

    Of a contradiction any one constraint or fact may be left out, and the rest fits.
    """

    versions: dict[str, str]
    conflicting_constraints: tuple[Constraint, ...] = ()
    conflicting_facts: tuple[CompatFact, ...] = ()
    proposed_changes: tuple[NewVersions, ...] = ()

    @property
    def is_consistent(self) -> bool:
        return not self.conflicting_facts and not self.conflicting_constraints


def solve_or_find_conflict(problem: StackProblem) -> StackVerdict:
    """Return how what a target fixes stands to the facts, with the ways out of a contradiction.

    What no version can repair comes first: a machine or a base whose own properties contradict each other.
    """
    versions = solve(problem.candidates(problem.constraints), problem.facts)
    if versions is not None:
        return StackVerdict(versions=versions)
    # a missing compiler is said last: versions that contradict each other do so with any compiler
    with_compiler = tuple(one for one in problem.constraints if one.name != "nvcc" or one.range)
    if solve(problem.candidates(with_compiler), problem.facts) is None:
        problem = replace(problem, constraints=with_compiler)
    fixed: tuple[str, ...] = MACHINE
    given = tuple(one for one in problem.constraints if not one.own)
    if solve(problem.candidates(given), problem.facts) is None:
        fixed = ("arch", "datacenter", "glibc")
        problem = replace(problem, constraints=tuple(one._replace(own=True) for one in given))
    facts, constraints = _find_smallest_contradiction(problem)
    changes = _find_changes(problem, constraints, fixed)
    return StackVerdict(
        versions={}, conflicting_constraints=constraints, conflicting_facts=facts, proposed_changes=changes
    )


def _find_smallest_contradiction(problem: StackProblem) -> tuple[tuple[CompatFact, ...], tuple[Constraint, ...]]:
    # facts that speak of nothing else than what is fixed explain best: what is last is kept
    fixed = {one.name for one in problem.constraints}
    facts = sorted(
        problem.facts, key=lambda fact: fixed.issuperset(one.name for one in fact.when_and_alternative_conditions())
    )
    domains = problem.candidates(problem.constraints)
    needed = _minimize(facts, lambda rows: solve(domains, rows) is None)
    return needed, _minimize(problem.constraints, lambda rows: solve(problem.candidates(rows), needed) is None)


def _minimize(items: Sequence[_Item], contradict: Callable[[Sequence[_Item]], bool]) -> tuple[_Item, ...]:
    kept = list(items)
    step = max(1, len(kept) // 2)
    while True:
        start = 0
        while start < len(kept):
            rest = kept[:start] + kept[start + step :]
            if contradict(rest):
                kept = rest
            else:
                start += step
        if step == 1:
            return tuple(kept)
        step //= 2


def _find_changes(
    problem: StackProblem, contradiction: Iterable[Constraint], fixed: Sequence[str]
) -> tuple[NewVersions, ...]:
    """Return the ways out with the fewest changes, the nearest first; leaving a package out is the last of them.

    None keeps a version that no fact speaks of, where facts speak of its neighbours, while others do: it is unproven.
    """
    unknown = {one.name for one in problem.unknown}
    guilty = dict.fromkeys(one.name for one in contradiction if one.own and one.name not in fixed)
    names = dict.fromkeys((*guilty, *(one.name for one in problem.constraints if one.own and one.name not in fixed)))
    if not any(one.name == "datacenter" for one in problem.constraints):
        names.pop("cuda-compat", None)  # a GPU that is not named may be a consumer's
    sizes = ((1, False), (2, False), (1, True), (2, True))
    for replaced, (count, may_be_absent) in product((unknown, set[str]()), sizes):
        changes = [
            change
            for some in combinations(names, count)
            if not guilty.keys().isdisjoint(some) and replaced.issubset(some)
            if (change := _find_nearest_change(problem, some, may_be_absent))
        ]
        if changes:
            return tuple(versions for __, versions in sorted(changes))
    return ()


def _find_nearest_change(
    problem: StackProblem, names: tuple[str, ...], may_be_absent: bool
) -> tuple[int, NewVersions] | None:
    """Return the nearest versions of `names` with which all the rest fits, and how many versions lie in between."""
    domains = dict(problem.candidates([one for one in problem.constraints if one.name not in names or not one.own]))
    before = problem.candidates(problem.constraints)
    for name in names:
        with_facts = problem.versions_with_facts.get(name)
        offered = [one for one in domains[name] if one and (not with_facts or one in with_facts)]
        domains[name] = _order_by_distance(problem.versions[name], before[name], offered)
        if may_be_absent and "" not in before[name]:
            domains[name] += ("",)
    if "cuda" in names and domains["default"] == ("",):
        # a build with CUDA in the place of one without: of a channel that torch has, with all that comes with it
        domains |= {"default": ("0",), "abi": problem.versions["abi"], "nccl": problem.versions["nccl"]}
    if "default" in names:
        domains["cuda"] = tuple(version for version in domains["cuda"] if version)
    if not all(domains.values()) or (free := solve(domains, problem.facts)) is None:
        return None
    if "nvcc" in names and free["cuda"] in domains["nvcc"]:
        domains["nvcc"] = (free["cuda"],)  # of the versions that would do, that of torch
    ways = sorted(product(*(enumerate(domains[name]) for name in names)), key=lambda way: sum(at for at, __ in way))
    for way in ways[:_MAX_TRIED_VERSIONS]:
        chosen = {name: (version,) for name, (__, version) in zip(names, way, strict=True)}
        if found := solve({**domains, **chosen}, problem.facts):
            versions = tuple((name, found["cuda" if name == "default" else name]) for name in names)
            return sum(at for at, __ in way), versions
    return None


def _order_by_distance(order: tuple[str, ...], before: tuple[str, ...], offered: list[str]) -> tuple[str, ...]:
    at = order.index(before[0]) if before and before[0] in order else 0
    others = [version for version in order if version in offered and version not in before]
    return tuple(sorted(others, key=lambda version: abs(order.index(version) - at)))


_MAX_SHOWN = 9

_TITLES = {
    "abi": "C++11 ABI",
    "arch": _("GPU architecture"),
    "cuda": _("CUDA of torch"),
    "cuda-compat": _("forward compatibility"),
    "datacenter": _("data-centre GPU"),
    "default": _("torch of the package index"),
    "driver": _("driver branch"),
    "glibc": "glibc",
    "nccl": "NCCL",
    "nvcc": _("CUDA compiler"),
    "python": "Python",
}


def stack_to_json(problem: StackProblem, verdict: StackVerdict) -> dict[str, Any]:
    return {
        "fits": None if verdict.is_consistent and problem.unknown else verdict.is_consistent,
        "unknown": [one._asdict() for one in problem.unknown],
        "versions": {name: version for name, version in verdict.versions.items() if version},
        "fixed": {one.name: {"range": one.range, "where": one.where} for one in problem.constraints},
        "facts": [fact.id for fact in _list_facts_in_force(problem, verdict)],
        "clash": [{"name": one.name, "range": one.range, "where": one.where} for one in verdict.conflicting_constraints]
        + [{"fact": fact.id, "says": _sentence(fact), "source": fact.source} for fact in verdict.conflicting_facts],
        "changes": [dict(versions) for versions in verdict.proposed_changes],
    }


def format_stack_verdict(target_name: str, problem: StackProblem, verdict: StackVerdict, is_without_lock: bool) -> str:
    unknown = ["  " + line for line in format_unknown_version_lines(problem)]
    unnamed = ", ".join(problem.names_without_facts)
    without = [_("  no fact speaks of: {names}").format(names=unnamed)] if unnamed else []
    if not verdict.is_consistent:
        head = _("{target}  no solution, because these contradict each other:").format(target=target_name)
        change = format_advice_to_resolve_conflict(target_name, verdict)
        change = _("nearest change: {change}").format(change=change)
        return join("\n", [head, *format_conflict_lines(verdict), *unknown, *without, change])
    facts = _list_facts_in_force(problem, verdict)
    where = {one.name: one.where for one in problem.constraints}
    shown = where.keys() | {
        one.name for fact in facts for one in fact.when_and_alternative_conditions() if one.name not in MACHINE
    }
    rows = [
        f"  {pad_translated(_TITLES.get(name, name), 28)} {version:<16} {translate(where.get(name, _('follows')))}"
        for name, version in verdict.versions.items()
        if version and name in shown
    ]
    said = _("fits together, as far as {count} facts say").format(count=len(facts))
    if is_without_lock:
        said = _("a set that fits, as far as {count} facts say").format(count=len(facts))
    said = _("nothing contradicts, but not all versions are known") if unknown else said
    kept = [join("", ("  ", _sentence(fact), "  [", fact.source, "]")) for fact in facts]
    return join("\n", [f"{target_name}  {translate(said)}", *unknown, *without, *rows, _("facts:"), *kept])


def format_unknown_version_lines(problem: StackProblem) -> list[str]:
    return [
        _("not known: {name} {version} (known: {known})").format(
            name=one.name, version=one.version, known=", ".join(_shorten(one.known))
        )
        for one in problem.unknown
    ]


def _shorten(versions: tuple[str, ...]) -> tuple[str, ...]:
    return versions if len(versions) <= _MAX_SHOWN else (*versions[: _MAX_SHOWN - 1], "…", versions[-1])


def format_conflict_lines(verdict: StackVerdict) -> list[str]:
    said: list[str] = [
        join("", (_TITLES.get(one.name, one.name), " ", one.range or _("none"), "  (", one.where, ")"))
        for one in verdict.conflicting_constraints
        if not one.name.endswith(REBUILT)
    ]
    return said + [
        _sentence(fact) + join("", (f"  [{fact.id}: ", fact.source, "]")) for fact in verdict.conflicting_facts
    ]


def format_advice_to_resolve_conflict(target_name: str, verdict: StackVerdict) -> str:
    facts = ", ".join(fact.id for fact in verdict.conflicting_facts)
    off: str = _("a fact that is wrong here ({facts}) goes into [compat.off] of the spec with the reason").format(
        facts=facts
    )
    changes = [
        reduce(
            lambda one, other: _("{one}, and {other}").format(one=one, other=other),
            (_describe_change(name, version) for name, version in versions),
        )
        for versions in verdict.proposed_changes[:3]
    ]
    if changes:
        change = reduce(lambda one, other: _("{one}; or else {other}").format(one=one, other=other), changes)
        return join("; ", (change, off)) if facts else change
    return _(
        "no change of two versions helps: leave versions of the spec open, then rlbox stack {name} --solve; {off}"
    ).format(name=target_name, off=off)


def _describe_change(name: str, version: str) -> str:
    match name:
        case "default" | "cuda":
            channel = f"cu{version.replace('.', '')}"
            return _(
                'take torch from a channel of the torch wheel index (source = "torch-wheels", channel = "{channel}")'
            ).format(channel=channel)
        case "nvcc":
            return _compiler(version) if version else _("take the CUDA compiler out")
        case "flashinfer-jit-cache" if version:
            return _(
                "add the wheel of flashinfer-jit-cache {version} by address and checksum ([[stack.wheels]])"
            ).format(version=version)
        case "driver":
            return _(
                "take a machine with driver {version} or newer, and set hardware.cuda_driver to what it takes"
            ).format(version=version)
        case "cuda-compat" if version:
            return _("put {package} into base.packages").format(package=f"cuda-compat-{version.replace('.', '-')}")
        case _ if name.endswith("-compiled") and version:
            package, page = name.removesuffix("-compiled"), get_main_docs_url("compile")
            return _("compile {package} beforehand ([[stack.compile]], {page})").format(package=package, page=page)
        case _ if not version:
            return _("leave out {name}").format(name=name)
        case _:
            return _("set {name} to {version}").format(name=_TITLES.get(name, name), version=version)


def _compiler(cuda: str) -> str:
    if int(cuda.split(".")[0]) < 13:  # its wheel has ptxas alone
        return _(
            "take a base image that has the compiler of CUDA {cuda} (a devel image), or what is compiled as published "
            "wheels by checksum ([[stack.wheels]])"
        ).format(cuda=cuda)
    return _(
        "put nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-crt, nvidia-cuda-cccl and nvidia-cuda-runtime of CUDA {cuda} "
        "into a group of the stack: they are a whole compiler"
    ).format(cuda=cuda)


def _sentence(fact: CompatFact) -> str:
    if fact.says:
        return _(fact.says)
    return _("{packages} wants {needed}").format(
        packages=" + ".join(map(str, fact.when)), needed=", ".join(map(str, fact.alternatives[0]))
    )


def _list_facts_in_force(problem: StackProblem, verdict: StackVerdict) -> list[CompatFact]:
    facts = [fact for fact in problem.facts if verdict.versions]
    held = [fact for fact in facts if all(one.holds(verdict.versions[one.name]) for one in fact.when)]
    return sorted(held, key=lambda fact: fact.id)


def require_consistent_stack_or_forced_conflict(app: App, target_name: str, *, force: bool = False) -> str:
    with app.collecting_refusals_if_dry_run("stack"):
        return require_no_conflict_unless_forced(app, *load_target_and_current_lock(app, target_name), force=force)
    return ""


def require_no_conflict_unless_forced(app: App, target: Target, lock: Lock | None, *, force: bool = False) -> str:
    problem = load_stack_problem(target, lock)
    verdict = solve_or_find_conflict(problem)
    for line in format_unknown_version_lines(problem):
        app.print_status(line)
    if verdict.is_consistent:
        return ""
    lines = format_conflict_lines(verdict)
    if force:
        app.print_status(
            _("warning: the stack of target {name} contradicts itself: {reasons}").format(
                name=target.name, reasons=join("; ", lines)
            )
        )
        return "; ".join(map(str, lines))
    head = _("the stack of target {name} contradicts itself:").format(name=target.name)
    raise SpecError(
        join("\n  ", (head, *lines)),
        where=f"images/{target.name}/target.toml",
        next_step=format_advice_to_resolve_conflict(target.name, verdict),
    )


def load_target_and_current_lock(app: App, target_name: str, *, skip_lock: bool = False) -> tuple[Target, Lock | None]:
    """No lock where there is none, where it is stale, and with `skip_lock`."""
    from rlbox.fixes.catalogue import load_target_with_fix_apt_packages
    from rlbox.target.lock import compute_lock_spec_checksum, load_lock

    target = load_target_with_fix_apt_packages(app.project, target_name).target
    lock = None if skip_lock else load_lock(app.project.own_or_shipped_lock_file(target_name))
    if lock and lock.spec != compute_lock_spec_checksum(target, list_rlbox_base_requirements()):
        lock = None
    return target, lock


def load_stack_problem(target: Target, lock: Lock | None) -> StackProblem:
    """`SpecError` when the target leaves out a fact that is not there."""
    table = load_compat_table()
    ids = [fact.id for fact in table.facts]
    if unknown := sorted(set(target.compat.off) - set(ids)):
        raise SpecError(
            _("compat.off: there is no fact {unknown!r}{suggest}").format(
                unknown=unknown[0], suggest=did_you_mean_hint(unknown[0], ids)
            ),
            where=f"images/{target.name}/target.toml",
            next_step=_("correct the name, or remove the line"),
        )
    return build_stack_problem(table, target, lock)
