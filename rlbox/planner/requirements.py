"""What package metadata says, as facts: `requirements.json`, which `make compat` writes out of a package index."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from rlbox.foreign import parse_json
from rlbox.planner.stack_solver import Condition, Fact

REQUIREMENTS = Path(__file__).with_name("requirements.json")
_NEEDS = re.compile(r"needs(?:\[(?P<extra>[^\]]+)\])?(?: on (?P<pythons>.+))?")
_PYTHONS = 4
_ENGINES = ("sglang", "vllm")
"""A framework says in an extra of that name which versions of the engine it is made for, however that is installed."""
_SOURCE = "metadata of "
_OWN_BUILD = ("cuda-", "nvidia-")
"""What torch's wheels on the package index require and those of a channel do not."""


@dataclass(frozen=True, kw_only=True)
class Releases:
    """The releases of packages as metadata tells them.

    Attributes
    ----------
    date
        Day of the newest release.
    versions
        Name to all versions that there are, the newest first; of an extra (`ray[default]`) the one version `1`.
    versions_with_metadata
        Name to the versions whose metadata was read.
    nccl_by_torch
        Version of torch to the NCCL that it is built with.
    """

    date: str
    versions: Mapping[str, tuple[str, ...]]
    versions_with_metadata: Mapping[str, tuple[str, ...]]
    nccl_by_torch: Mapping[str, str]
    facts: tuple[Fact, ...]


@cache
def load_releases() -> Releases:
    """Return the shipped file."""
    table = parse_json(REQUIREMENTS.read_bytes())
    packages = table["packages"]
    versions = {name: tuple(row["versions"].split()) for name, row in packages.items()}
    rows = {name: _by_version(row["releases"]) for name, row in packages.items() if row["releases"]}
    extras = {f"{name}[{need.extra}]" for name, found in rows.items() for row in found.values() for need in _needs(row)}
    versions |= dict.fromkeys(sorted(one for one in extras if not one.endswith("[]")), ("1",))
    source = f"{_SOURCE}{table['date']}"
    facts = [fact for name, found in rows.items() for fact in _facts(name, found, versions, source)]
    builds = {version: build for version, row in rows["torch"].items() if (build := _torch_build(row))}
    facts += [_build_fact(version, *build, source) for version, build in builds.items()]
    read = {name: tuple(found) for name, found in rows.items()}
    return Releases(
        date=str(table["date"]),
        versions=versions,
        versions_with_metadata=read,
        nccl_by_torch={version: nccl for version, (_, nccl) in builds.items()},
        facts=tuple(facts),
    )


def is_from_package_metadata(fact: Fact) -> bool:
    """Return whether a package declares it itself: what a target leaves out by name overrides that."""
    return fact.source.startswith(_SOURCE)


_Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Need:
    """What a release needs of another package, where `extra` is asked for (empty: always) and on `pythons`."""

    extra: str
    pythons: str
    name: str
    range: str
    extras: tuple[str, ...]


def _by_version(releases: Iterable[_Row]) -> dict[str, _Row]:
    return {version: row for row in releases for version in str(row["versions"]).split()}


def _needs(row: _Row) -> Iterator[_Need]:
    for key, texts in row.items():
        if found := _NEEDS.fullmatch(key):
            for text in texts:
                name, span, extras = _parsed(text)
                yield _Need(
                    extra=found["extra"] or "", pythons=found["pythons"] or "", name=name, range=span, extras=extras
                )


@cache
def _parsed(text: str) -> tuple[str, str, tuple[str, ...]]:
    asked = Requirement(text)
    return asked.name, str(asked.specifier), tuple(sorted(asked.extras))


def _facts(name: str, rows: Mapping[str, _Row], versions: Mapping[str, Any], source: str) -> Iterator[Fact]:
    """Yield what the releases of a package need; those that follow each other and need the same are one fact."""
    spans: dict[tuple[str, str, str], dict[str, _Need]] = {}
    for version, row in rows.items():
        for need in _needs(row):
            found = spans.setdefault((need.extra, need.pythons, need.name), {})
            found[version] = _both(found[version], need) if version in found else need
    order = tuple(rows)
    for needs in spans.values():
        for newest, oldest, need in _runs(order, needs):
            yield from _need_facts(name, newest, oldest, need, versions, source)
    for key, other in (("python", "python"), ("glibc", "glibc")):
        for newest, oldest, text in _runs(order, {version: row.get(key, "") for version, row in rows.items()}):
            if span := _python_range(text) if key == "python" else f">={text}" * bool(text):
                yield _fact(name, newest, oldest, (), (Condition(name=other, range=span),), other, source)


def _both(one: _Need, other: _Need) -> _Need:
    """Return what two lines on the same package say together."""
    ranges = dict.fromkeys(part for need in (one, other) for part in need.range.split(",") if part)
    return replace(one, range=",".join(ranges), extras=tuple(sorted({*one.extras, *other.extras})))


def _runs(order: Iterable[str], found: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield the newest and the oldest version of each run of the same value."""
    newest, oldest, value = "", "", None
    for version in (*order, ""):
        if newest and found.get(version) == value:
            oldest = version
            continue
        if newest:
            yield newest, oldest, value
        newest, oldest, value = (version, version, found[version]) if version in found else ("", "", None)


def _python_range(text: str) -> str:
    pythons = text.split()
    return f">={pythons[0]},<={pythons[-1]}" if 0 < len(pythons) < _PYTHONS else ""


def _need_facts(
    name: str, newest: str, oldest: str, need: _Need, versions: Mapping[str, Any], source: str
) -> Iterator[Fact]:
    beside: list[Condition] = []
    if need.pythons:
        beside.append(Condition(name="python", range=_python_range(need.pythons)))
    if name == "torch" and need.name.startswith(_OWN_BUILD):
        beside.append(Condition(name="default", range="==1"))
    what = "-".join((need.name, *need.pythons.split()))
    wanted = Condition(name=need.name, range=need.range)
    whole = (
        wanted,
        *(Condition(name=f"{need.name}[{one}]") for one in need.extras if f"{need.name}[{one}]" in versions),
    )
    if not need.extra:
        yield _fact(name, newest, oldest, (*beside,), whole, what, source)
        return
    asked = Condition(name=f"{name}[{need.extra}]")
    yield _fact(name, newest, oldest, (asked, *beside), whole, f"{need.extra}-{what}", source)
    if need.extra in _ENGINES and need.range and need.name in (need.extra, "torch"):
        there = dict.fromkeys((need.extra, need.name))
        when = (*(Condition(name=one) for one in there), *beside)
        yield _fact(name, newest, oldest, when, (wanted,), f"with-{need.extra}-{what}", source)


def _fact(
    name: str,
    newest: str,
    oldest: str,
    beside: tuple[Condition, ...],
    needs: tuple[Condition, ...],
    what: str,
    source: str,
) -> Fact:
    span = f"=={newest}" if newest == oldest else f">={oldest},<={newest}"
    return Fact.model_construct(
        id=re.sub(r"[^a-z0-9]+", "-", f"{name}-{oldest}-{what}"),
        says="",
        when=(Condition(name=name, range=span), *beside),
        needs=needs,
        any=(),
        source=source,
    )


def _torch_build(row: _Row) -> tuple[str, str] | None:
    """Return the CUDA and the NCCL that a torch of the package index is built with."""
    pins = {need.name: need.range.removeprefix("==") for need in _needs(row) if need.range.startswith("==")}
    runtime = pins.get("cuda-toolkit") or pins.get("nvidia-cuda-runtime-cu12", "")
    nccl = pins.get("nvidia-nccl-cu13") or pins.get("nvidia-nccl-cu12", "")
    return (".".join(runtime.split(".")[:2]), nccl) if runtime and nccl else None


def _build_fact(version: str, cuda: str, nccl: str, source: str) -> Fact:
    return Fact.model_construct(
        id=f"torch-{version.replace('.', '-')}",
        says=f"torch {version} of the package index is built with CUDA {cuda} and NCCL {nccl}",
        when=(Condition(name="torch", range=f"=={version}"), Condition(name="default", range="==1")),
        needs=(Condition(name="cuda", range=f"=={cuda}"), Condition(name="nccl", range=f"=={nccl}")),
        any=(),
        source=source,
    )
