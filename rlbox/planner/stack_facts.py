"""What fits together: facts about packages, GPUs and drivers. The schema of `compat.toml`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import Field, model_validator

from rlbox.config.schema import Name, SpecModel, validate_spec
from rlbox.config.toml_files import load_toml
from rlbox.planner.requirements import is_from_package_metadata, load_releases
from rlbox.planner.stack_solver import Domains, Fact, VersionText, is_in_range
from rlbox.target.lock import Lock
from rlbox.target.target import GitSource, Target, Wheel

_MACHINE = frozenset(("arch", "datacenter", "default", "driver", "python", "glibc"))
CudaVersion = VersionText
DriverBranch = VersionText


class TorchChannels(SpecModel):
    """The CUDA versions that torch has builds with beside that of the package index."""

    versions: tuple[VersionText, ...] = Field(min_length=1)
    channels: tuple[VersionText, ...] = Field(min_length=1)
    source: str = Field(min_length=1)


class CompatTable(SpecModel):
    """The table as a file, to which what metadata says is added.

    `versions` are those that the solver may choose of what metadata does not list, the newest first. `branches` map the
    newest CUDA that a driver takes to the driver's branch.
    """

    versions: dict[Name, tuple[VersionText, ...]]
    branches: dict[CudaVersion, DriverBranch] = Field(default_factory=dict)
    torch: tuple[TorchChannels, ...]
    fact: tuple[Fact, ...]

    @model_validator(mode="after")
    def _consistent(self) -> CompatTable:
        facts = self.table_facts()
        ids = [fact.id for fact in facts]
        problems = [f"two facts have the id {one!r}" for one in sorted({one for one in ids if ids.count(one) > 1})]
        named = {condition.name for fact in facts for condition in fact.conditions()}
        problems += [f"versions: nothing is said of {name!r}" for name in sorted(named - set(self.all_versions))]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def all_versions(self) -> dict[str, tuple[str, ...]]:
        """Every name to the versions that the solver may choose."""
        return {**load_releases().versions, **self.versions}

    def versions_with_facts(self, name: str) -> tuple[str, ...]:
        """Return the versions that facts speak of, where those of a name have facts of their own; else nothing."""
        if read := load_releases().versions_with_metadata.get(name):
            return read
        conditions = (condition for fact in self.fact for condition in fact.when if condition.name == name)
        own = name not in _MACHINE and any(one.range.startswith("==") for one in conditions)
        return self.versions.get(name, ()) if own else ()

    def table_facts(self) -> tuple[Fact, ...]:
        return (*(fact for row in self.torch for fact in _channel_facts(row)), *self.fact)

    def table_and_metadata_facts(self) -> tuple[Fact, ...]:
        """Return every fact, those of metadata among them."""
        return (*self.table_facts(), *load_releases().facts)


def _channel_facts(row: TorchChannels) -> Iterator[Fact]:
    for version in row.versions:
        fact: dict[str, Any] = {
            "id": f"torch-{version.replace('.', '-')}-channels",
            "says": f"torch {version} has builds with CUDA {', '.join(row.channels)}",
            "when": (f"torch=={version}", "default==0", "cuda"),
            "any": tuple((f"cuda=={cuda}", *_nccl(version, cuda)) for cuda in row.channels),
            "source": row.source,
        }
        yield Fact.model_validate(fact)


def _nccl(version: str, cuda: str) -> tuple[str, ...]:
    """Return the NCCL of a channel: that of the release, but for CUDA 11, which keeps an older one."""
    nccl = load_releases().nccl_by_torch.get(version)
    return (f"nccl=={nccl}",) if nccl and Version(cuda).major > 11 else ()


COMPAT = Path(__file__).with_name("compat.toml")


@cache
def load_compat() -> CompatTable:
    """Return the shipped table of what fits together."""
    return validate_spec(CompatTable, load_toml(COMPAT), str(COMPAT))


MACHINE = ("arch", "datacenter", "driver", "glibc")
"""Names that a spec cannot choose: they say what the machine is."""

_BUILD = ("default", "cuda", "nccl", "abi", "nvcc", "cuda-compat")

# Source: Dao-AILab/flash-attention setup.py, `get_wheel_url`; causal-conv1d and mamba name theirs alike.
_BUILT_FOR = re.compile(r"cu(\d\d)\d*torch(\d+\.\d+)cxx11abi(true|false)")
# Of the wheels of CUDA 12 that of the compiler has ptxas alone, and another name.
_NVCC_WHEEL = "nvidia-cuda-nvcc"
_NVCC_DEB = re.compile(r"cuda-(?:compiler|minimal-build|nvcc|toolkit)-(\d+)-(\d+)")
_GLIBC = {"debian:bookworm": "2.36"}
_COMPILED = "-compiled"
_EXCLUDED, _LOCK_FILE = "python.exclude", "lock.json"
# Without them its build leaves its operators to the first use: source: DeepSpeed setup.py, op_builder/all_ops.py.
_SWITCHES = {"deepspeed": ("DS_BUILD_FUSED_ADAM", "DS_BUILD_CPU_ADAM")}


@dataclass(frozen=True, kw_only=True)
class VersionConstraint:
    """One thing that a target fixes: a range of versions of `name`, and which line of its spec says so."""

    name: str
    range: str
    where: str
    own: bool = True

    def __str__(self) -> str:
        return f"{self.name}{self.range}" if self.range else f"no {self.name}"


@dataclass(frozen=True, kw_only=True)
class UnknownVersion:
    """A version of a package that the table does not know, and those that it knows, the newest first."""

    name: str
    version: str
    known: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class StackProblem:
    """What is asked of the solver: all versions there are, what the target fixes, and the rules in force.

    `unknown` are versions that the target fixes and that no fact speaks of, though facts speak of others, which are
    `versions_with_facts`: none where facts speak of ranges alone.
    """

    versions: Mapping[str, tuple[str, ...]]
    wishes: tuple[VersionConstraint, ...]
    rules: tuple[Fact, ...]
    unknown: tuple[UnknownVersion, ...] = ()
    versions_with_facts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def domains(self, wishes: Iterable[VersionConstraint]) -> Domains:
        """Return what each name may be under some of the wishes; what none of them names is rather not there."""
        asked: dict[str, list[VersionConstraint]] = {}
        for wish in wishes:
            asked.setdefault(wish.name, []).append(wish)
        found: Domains = {}
        for name, versions in self.versions.items():
            rows = asked.get(name)
            if rows is None:
                found[name] = ("", *versions)
            elif any(not row.range for row in rows):
                found[name] = ("",)
            else:
                fit = tuple(v for v in versions if all(is_in_range(row.range, v) for row in rows))
                found[name] = tuple(v for v in fit if v in self.versions_with_facts.get(name, ())) or fit
        return found


def plan_problem(table: CompatTable, target: Target, lock: Lock | None) -> StackProblem:
    """Return the question that a target puts.

    Parameters
    ----------
    lock
        Its lock, whose versions are judged where the spec pins none; None for the spec alone.
    """
    every = table.all_versions
    said = [*_wishes(table, target, lock)]
    if lock and target.base.bootstrap:
        said += _missing(every, said)
    wishes = tuple(_plain(wish for wish in said if wish.name in every))
    # what a package declares and the spec, or the resolver, has left out by name, was left out on purpose
    out = {wish.name for wish in wishes if not wish.range and wish.where in (_EXCLUDED, _LOCK_FILE)}
    facts = (fact for fact in table.table_and_metadata_facts() if fact.id not in target.compat.off)
    rules = _reached(
        [fact for fact in facts if not (is_from_package_metadata(fact) and out & {one.name for one in fact.needs})],
        wishes,
    )
    named = {condition.name for rule in rules for condition in rule.conditions()} | {wish.name for wish in wishes}
    versions = {name: _with_pins(rows, name, wishes) for name, rows in every.items() if name in named}
    # where the table knows other versions only, nothing is judged
    known = tuple(one for one in wishes if not one.range or any(is_in_range(one.range, v) for v in versions[one.name]))
    return StackProblem(
        versions=versions,
        wishes=known,
        rules=rules,
        unknown=tuple(_unknown(table, wishes)),
        versions_with_facts={name: table.versions_with_facts(name) for name in versions},
    )


def _reached(facts: Iterable[Fact], wishes: Iterable[VersionConstraint]) -> tuple[Fact, ...]:
    """Return the facts that can come to bear: all that they speak of is fixed, or is needed by what is."""
    there = {wish.name for wish in wishes if wish.range} | set(MACHINE) | set(_BUILD)
    waiting = list(facts)
    found: list[Fact] = []
    while True:
        fit = [fact for fact in waiting if all(one.absent or one.name in there for one in fact.when)]
        if not fit:
            return tuple(found)
        found += fit
        waiting = [fact for fact in waiting if not all(one.absent or one.name in there for one in fact.when)]
        there |= {one.name for fact in fit for row in fact.satisfying_alternatives for one in row if not one.absent}


def _unknown(table: CompatTable, wishes: Iterable[VersionConstraint]) -> Iterator[UnknownVersion]:
    """Yield each version that is fixed and not known, of packages whose versions have facts of their own."""
    for wish in wishes:
        known = table.versions_with_facts(wish.name)
        if wish.range and known and not any(is_in_range(wish.range, one) for one in known):
            yield UnknownVersion(name=wish.name, version=wish.range.removeprefix("=="), known=known)


def _missing(every: Iterable[str], said: Iterable[VersionConstraint]) -> list[VersionConstraint]:
    """Return what a whole lock says by not naming it; which extras were asked for it does not say."""
    named = {wish.name for wish in said} | {"python", *MACHINE, *_BUILD}
    return [
        VersionConstraint(name=name, range="", where=_LOCK_FILE)
        for name in every
        if name not in named and "[" not in name
    ]


def _plain(wishes: Iterable[VersionConstraint]) -> Iterator[VersionConstraint]:
    """Yield the wishes, of the same one only the first: what the spec pins is not said by the lock again."""
    seen: set[tuple[str, str]] = set()
    for wish in wishes:
        if (wish.name, wish.range) not in seen:
            seen.add((wish.name, wish.range))
            yield wish


def _with_pins(versions: tuple[str, ...], name: str, wishes: Iterable[VersionConstraint]) -> tuple[str, ...]:
    """Return the versions of a name, those among them that are pinned and that the table does not list."""
    pins = [found[1] for wish in wishes if wish.name == name and (found := re.fullmatch(r"==([^*,]*)", wish.range))]
    new = [pin for pin in dict.fromkeys(pins) if pin not in versions]
    return tuple(sorted((*versions, *new), key=Version, reverse=True))


def _wishes(table: CompatTable, target: Target, lock: Lock | None) -> Iterator[VersionConstraint]:
    yield from _machine(table, target)
    python = not target.base.bootstrap  # Debian has one
    yield VersionConstraint(name="python", range=f"=={target.python.version}", where="python.version", own=python)
    for part in target.git:
        yield from _git(part)
    for group in target.stack:
        for text in group.packages:
            yield from _package(text, f"stack.{group.name}")
        for wheel in group.wheels:
            yield from _wheel(wheel, f"stack.{group.name}.wheels")
    yield from _compiled(table, target)
    yield from _excluded(target)
    yield from _locked(lock)


def _wheel(wheel: Wheel, where: str) -> Iterator[VersionConstraint]:
    """Yield the version of a wheel, and what its name says that it was built for."""
    yield VersionConstraint(name=wheel.distribution_name, range=_exactly(wheel.version), where=where)
    if built := _BUILT_FOR.search(wheel.version):
        yield VersionConstraint(name="cuda", range=f"=={built[1]}.*", where=where, own=False)
        yield VersionConstraint(name="torch", range=f"=={built[2]}.*", where=where, own=False)
        yield VersionConstraint(name="abi", range=f"=={int(built[3] == 'true')}", where=where, own=False)
    if python := re.search(r"-cp(\d)(\d+)-cp", wheel.file):
        yield VersionConstraint(name="python", range=f"=={python[1]}.{python[2]}", where=where, own=False)


def _compiled(table: CompatTable, target: Target) -> Iterator[VersionConstraint]:
    """Yield what wheels that are compiled are, and which of those that facts ask for there are not."""
    made = set()
    for group, entry in target.list_compile_entries:
        where, name = f"stack.{group.name}.compile", entry.distribution_name
        version = entry.version or _version_of(entry.ref)
        yield VersionConstraint(name=name, range=_exactly(version) if version else ">=0", where=where)
        if entry.cuda:
            major = int(entry.cuda.partition(".")[0])
            yield VersionConstraint(name="cuda", range=f">={major},<{major + 1}", where=where)
        if all(entry.env.get(switch) == "1" for switch in _SWITCHES.get(name, ())):
            made.add(f"{name}{_COMPILED}")
    for name in table.all_versions:
        if name.endswith(_COMPILED):
            yield VersionConstraint(name=name, range="==1" if name in made else "", where="stack.compile")


def _version_of(ref: str) -> str:
    """Return the version that a tag tells (`v0.2.2`, `core_v0.14.0`), empty where it tells none."""
    found = re.fullmatch(r"(?:[a-z]+_)?v(\d[0-9a-z.]*)", ref)
    try:
        return str(Version(found[1])) if found else ""
    except InvalidVersion:
        return ""


def _excluded(target: Target) -> Iterator[VersionConstraint]:
    held: set[str] = {canonicalize_name(name) for name in target.base.holds}
    held |= {wheel.distribution_name for group in target.stack for wheel in group.wheels}
    held |= {entry.distribution_name for _, entry in target.list_compile_entries}
    for name in (canonicalize_name(text) for text in target.python.exclude):
        if name not in held:
            yield VersionConstraint(name=name, range="", where=_EXCLUDED)


def _machine(table: CompatTable, target: Target) -> Iterator[VersionConstraint]:
    hardware = target.hardware
    if arch := re.fullmatch(r"sm_(\d+)(\d)", hardware.arch):
        yield VersionConstraint(name="arch", range=f"=={arch[1]}.{arch[2]}", where="hardware.arch", own=False)
    else:
        yield VersionConstraint(name="arch", range="", where="hardware.arch", own=False)
    if hardware.grade:
        yield VersionConstraint(
            name="datacenter", range=f"=={int(hardware.grade == 'datacenter')}", where="hardware.grade", own=False
        )
    if branch := table.branches.get(hardware.cuda_driver):
        yield VersionConstraint(name="driver", range=f"=={branch}", where="hardware.cuda_driver", own=False)
    if glibc := _GLIBC.get(target.base.bootstrap):
        yield VersionConstraint(name="glibc", range=f"=={glibc}", where="base.bootstrap", own=False)
    yield from _torch_build(target)
    held = {canonicalize_name(name): version for name, version in target.base.holds.items()}
    for name, version in held.items():
        yield VersionConstraint(name=name, range=_exactly(version), where="base.holds", own=False)
    yield from _compiler(target)
    if target.base.bootstrap and not any(package.startswith("cuda-compat") for package in target.base.packages):
        yield VersionConstraint(name="cuda-compat", range="", where="base.packages")


def _compiler(target: Target) -> Iterator[VersionConstraint]:
    """Yield which CUDA compiler there is: of a wheel or an apt package; a base image may have one that nobody names."""
    wheels = [row for group in target.stack for text in group.packages for row in _package(text, f"stack.{group.name}")]
    if found := next((row for row in wheels if row.name == _NVCC_WHEEL), None):
        yield VersionConstraint(name="nvcc", range=found.range, where=found.where)
        return
    for package in target.base.packages:
        if named := _NVCC_DEB.fullmatch(package):
            yield VersionConstraint(name="nvcc", range=f"=={named[1]}.{named[2]}", where="base.packages")
            return
    if target.base.bootstrap:
        yield VersionConstraint(name="nvcc", range="", where="base.packages and the stack")


def _torch_build(target: Target) -> Iterator[VersionConstraint]:
    """Yield which build of torch it is: a channel, the base's own, or the index's default."""
    group = next((group for group in target.stack if group.channel), None)
    local = Version(target.base.holds["torch"]).local if "torch" in target.base.holds else None
    channel, where = (group.channel, f"stack.{group.name}.channel") if group else (local or "", "base.holds")
    if found := re.fullmatch(r"cu(\d+)(\d)", channel):
        yield VersionConstraint(name="default", range="==0", where=where)
        yield VersionConstraint(name="cuda", range=f"=={found[1]}.{found[2]}", where=where)
    elif channel == "cpu":
        yield from (VersionConstraint(name=name, range="", where=where) for name in ("cuda", "nccl", "abi", "default"))
    elif not channel:
        yield VersionConstraint(name="default", range="==1", where="stack")


def _git(part: GitSource) -> Iterator[VersionConstraint]:
    """Yield the version of a git part, as far as its ref tells one (`v0.2.2`, `core_v0.14.0`)."""
    if version := _version_of(part.ref):
        yield from _package(f"{part.name}=={version}", f"git.{part.name}.ref")


def _package(text: str, where: str) -> Iterator[VersionConstraint]:
    try:
        asked = Requirement(text)
        ranges = str(asked.specifier)
        for spec in asked.specifier:
            Version(spec.version.removesuffix(".*"))
    except (InvalidRequirement, InvalidVersion):  # the lock refuses it with a better message
        return
    name = canonicalize_name(asked.name)
    yield VersionConstraint(name=name, range=ranges or ">=0", where=where)
    yield from (VersionConstraint(name=f"{name}[{extra}]", range=">=0", where=where) for extra in sorted(asked.extras))


def _locked(lock: Lock | None) -> Iterator[VersionConstraint]:
    for group in lock.groups if lock else ():
        for package in group.packages:
            name = canonicalize_name(package.name)
            yield VersionConstraint(name=name, range=_exactly(package.version), where="lock.json")
            if name.startswith("nvidia-nccl-"):
                yield VersionConstraint(name="nccl", range=_exactly(package.version), where="lock.json", own=False)


def _exactly(version: str) -> str:
    return f"=={Version(version).public}"
