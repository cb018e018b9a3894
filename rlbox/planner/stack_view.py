"""How the verdict on a stack is shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rlbox.amounts import padded
from rlbox.errors import page
from rlbox.i18n import _
from rlbox.planner.stack_explain import Verdict, WayOut
from rlbox.planner.stack_fact import Fact
from rlbox.planner.stack_facts import MACHINE, Problem, UnknownVersion

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


def stack_json(problem: Problem, verdict: Verdict) -> dict[str, Any]:
    """Return the verdict as JSON types."""
    return {
        "fits": None if verdict.fits and problem.unknown else verdict.fits,
        "unknown": [asdict(one) for one in problem.unknown],
        "versions": {name: version for name, version in verdict.values.items() if version},
        "fixed": {wish.name: {"range": wish.range, "where": wish.where} for wish in problem.wishes},
        "facts": sorted(rule.id for rule in _applied(problem, verdict)),
        "clash": [{"name": w.name, "range": w.range, "where": w.where} for w in verdict.clash_wishes]
        + [{"fact": fact.id, "says": _sentence(fact), "source": fact.source} for fact in verdict.clash_rules],
        "changes": [dict(change.to) for change in verdict.changes],
    }


def stack_text(name: str, problem: Problem, verdict: Verdict, solved: bool) -> str:
    """Return the verdict as lines: the versions and the facts that were looked at, or the contradiction."""
    unknown = [f"  {line}" for line in unknown_lines(problem)]
    if not verdict.fits:
        lines = [f"{name}  no solution, because these contradict each other:", *clash_lines(verdict)]
        lines += unknown
        return "\n".join([*lines, f"nearest change: {next_step(name, verdict)}"])
    where = {wish.name: wish.where for wish in problem.wishes}
    shown = [n for n, v in verdict.values.items() if v and (n in where or n in _drawn(problem, verdict))]
    rows = [f"  {padded(_title(n), 28)} {verdict.values[n]:<16} {where.get(n, 'follows')}" for n in shown]
    applied = sorted(_applied(problem, verdict), key=lambda fact: fact.id)
    kept = [f"  {_sentence(fact)}  [{fact.source}]" for fact in applied]
    head = "a set that fits" if solved else "fits together"
    said = f"{head}, as far as 1 fact says" if len(applied) == 1 else f"{head}, as far as {len(applied)} facts say"
    said = "nothing contradicts, but not all versions are known" if unknown else said
    return "\n".join([f"{name}  {said}", *unknown, *rows, "facts:", *kept])


def unknown_lines(problem: Problem) -> list[str]:
    """Return a line for each version that is not known."""
    return [
        f"not known: {one.name} {one.version} (known: {', '.join(_shown_versions(one))})" for one in problem.unknown
    ]


def _shown_versions(unknown: UnknownVersion) -> list[str]:
    """Return the known versions, of many the newest and the oldest."""
    known = [*unknown.known]
    return known if len(known) <= _MOST_SHOWN else [*known[: _MOST_SHOWN - 1], "…", known[-1]]


def clash_lines(verdict: Verdict) -> list[str]:
    """Return the contradiction: what the target says, then the facts, each with its source."""
    said = [f"{_title(w.name)} {w.range or 'none'}  ({w.where})" for w in verdict.clash_wishes]
    return said + [f"{_sentence(fact)}  [{fact.id}: {fact.source}]" for fact in verdict.clash_rules]


def next_step(name: str, verdict: Verdict) -> str:
    """Return the nearest changes, or how to leave a fact out."""
    ways = [_change(change) for change in verdict.changes[:3]]
    facts = ", ".join(rule.id for rule in verdict.clash_rules)
    off = _("a fact that is wrong here ({facts}) goes into [compat.off] of the spec with the reason").format(
        facts=facts
    )
    others = "".join(f"; or else {way}" for way in ways[1:])
    return (
        _("{way}{others}; {off}").format(way=ways[0], others=others, off=off)
        if ways
        else _("no change of versions helps; {off}").format(off=off)
    )


def _change(change: WayOut) -> str:
    first, *more = (_one_change(name, version) for name, version in change.to)
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
            return f"compile {name.removesuffix('-compiled')} beforehand ([[stack.compile]], {page('compile')})"
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


def _applied(problem: Problem, verdict: Verdict) -> Iterator[Fact]:
    """Yield the rules whose conditions hold in the solution."""
    for rule in problem.rules:
        if verdict.values and all(c.holds(verdict.values[c.name]) for c in rule.when):
            yield rule


def _drawn(problem: Problem, verdict: Verdict) -> set[str]:
    return {c.name for rule in _applied(problem, verdict) for c in rule.conditions() if c.name not in MACHINE}
