"""What fits together, and what a target fixes of it: the question that its stack puts to the solver.

Facts are those of `compat.toml`, and what packages declare: `requirements.json.xz`, which `make compat` writes.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from rlbox.config.toml_files import load_toml
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.planner.stack_solver import CompatFact, VersionsByName, is_public_version_in_range, parse_condition
from rlbox.target.lock import Lock
from rlbox.target.target import Target, Wheel

COMPAT = Path(__file__).with_name("compat.toml")
REQUIREMENTS = Path(__file__).with_name("requirements.json.xz")

MACHINE = ("arch", "datacenter", "driver", "glibc")
"""Names that a spec cannot choose: they say what the machine is."""
_WITHOUT_OWN_FACTS = (*MACHINE, "default", "python")
_BUILD = ("default", "cuda", "nccl", "abi", "nvcc", "cuda-compat")
_METADATA = "metadata of "
_BUILT_FOR_TORCH = ("sgl-kernel", "sglang-kernel")
# frameworks that patch others: they excuse a pair of versions only where the spec asks for them
_NOT_ADDED = ("ms-swift", "unsloth", "llamafactory")
# torch refuses a compiler of another CUDA major version; flashinfer, which engines bring along, calls nvcc itself
_OF_TORCH = ("nvcc-11", "nvcc-12", "nvcc-13")
_CALL_NVCC = frozenset(("flashinfer-python", "sglang", "vllm"))
_BUILD_BY_TORCH = frozenset(("deepspeed", "flash-attn", "openrlhf", "transformer-engine", "transformer-engine-torch"))


@dataclass(frozen=True, kw_only=True)
class CompatTable:
    """All facts, and the versions that the solver may choose of each name, the newest first.

    `versions_with_facts` are those that facts speak of, of names whose versions have facts of their own.
    `driver_branch_by_cuda` map the newest CUDA that a driver takes to the driver's branch.
    """

    versions: Mapping[str, tuple[str, ...]]
    versions_with_facts: Mapping[str, tuple[str, ...]]
    driver_branch_by_cuda: Mapping[str, str]
    facts: tuple[CompatFact, ...]


@cache
def load_compat_table() -> CompatTable:
    table, metadata = load_toml(COMPAT), parse_untrusted_json(lzma.decompress(REQUIREMENTS.read_bytes()))
    own = {name: tuple(versions) for name, versions in table["versions"].items()}
    read = {name: tuple(text.split()) for name, text in metadata["versions"].items()}
    for row in table["fact"]:
        if names := row.get("same"):
            row["any"] = [[f"{name}=={version}" for name in names] for version in read[names[-1]]]
    facts = [_parse_fact(row, row["source"]) for row in table["fact"]]
    pinned = {one.name for fact in facts for one in fact.when if one.version_range.startswith("==")}
    without = metadata["versions_without_facts"]
    declared = _("metadata of {date}").format(date=metadata["date"])
    facts += [_parse_fact(row, declared) for row in metadata["facts"]]
    # kernels run with the torch that they were built for: a version without a fact of that is not known
    on_torch = [fact for fact in facts if fact.alternatives[0][0].name == "torch"]
    built = {name: [fact.when[0] for fact in on_torch if fact.when[0].name == name] for name in _BUILT_FOR_TORCH}
    return CompatTable(
        versions={**read, **own},
        versions_with_facts={
            **{name: own[name] for name in own if name in pinned and name not in _WITHOUT_OWN_FACTS},
            **{name: tuple(v for v in read[name] if v not in without[name].split()) for name in without},
            **{name: tuple(v for v in read[name] if any(one.holds(v) for one in built[name])) for name in built},
        },
        driver_branch_by_cuda=table["branches"],
        facts=tuple(facts),
    )


def _parse_fact(row: Mapping[str, Any], source: str) -> CompatFact:
    return CompatFact(
        id=row["id"],
        says=row.get("says", ""),
        when=tuple(map(parse_condition, row["when"])),
        alternatives=tuple(tuple(map(parse_condition, one)) for one in row.get("any") or [row["needs"]]),
        source=source,
    )


def is_from_package_metadata(fact: CompatFact) -> bool:
    return fact.source.startswith(_METADATA)


class Constraint(NamedTuple):
    """One thing that a target fixes: a range of versions of `name` (empty: it is not there), and where that is said.

    `own` says that the target may be changed there.
    """

    name: str
    range: str
    where: str
    own: bool = True

    def __str__(self) -> str:
        return f"{self.name}{self.range}" if self.range else f"no {self.name}"


class VersionWithoutFacts(NamedTuple):
    """A version of a package that no fact speaks of, and those that facts speak of, the newest first."""

    name: str
    version: str
    known: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class StackProblem:
    """What is asked of the solver: all versions there are, what the target fixes, and the facts in force.

    `unknown` are versions that the target fixes and that no fact speaks of, though facts speak of others, which are
    `versions_with_facts`: none where facts speak of ranges alone. `names_without_facts` are packages that the target
    pins and that no fact names.
    """

    versions: Mapping[str, tuple[str, ...]]
    constraints: tuple[Constraint, ...]
    facts: tuple[CompatFact, ...]
    unknown: tuple[VersionWithoutFacts, ...]
    versions_with_facts: Mapping[str, tuple[str, ...]]
    names_without_facts: tuple[str, ...]

    def candidates(self, constraints: Iterable[Constraint]) -> VersionsByName:
        """Return what each name may be under some constraints; what none of them names is rather not there."""
        ranges: dict[str, list[str]] = {}
        for constraint in constraints:
            ranges.setdefault(constraint.name, []).append(constraint.range)
        found = {name: ("",) if name in _NOT_ADDED else ("", *versions) for name, versions in self.versions.items()}
        for name, texts in ranges.items():
            if "" in texts:
                found[name] = ("",)
                continue
            fit = tuple(v for v in self.versions[name] if all(is_public_version_in_range(text, v) for text in texts))
            found[name] = tuple(v for v in fit if v in self.versions_with_facts.get(name, ())) or fit
        return found


def build_stack_problem(table: CompatTable, target: Target, lock: Lock | None) -> StackProblem:
    """Without `lock` the spec alone is judged; else its versions where the spec pins none."""
    listed = [*_list_constraints(table, target, lock)]
    if lock and target.base.bootstrap:  # a whole lock says what is not there; which extras were asked for it does not
        named = {one.name for one in listed} | {"python", *MACHINE, *_BUILD}
        listed += [Constraint(name, "", _LOCK_FILE) for name in table.versions if name not in named and "[" not in name]
    unique: dict[tuple[str, str], Constraint] = {}
    for constraint in listed:
        if constraint.name in table.versions:
            unique.setdefault((constraint.name, constraint.range), constraint)
    constraints = tuple(unique.values())
    there = {one.name for one in constraints if one.range}
    off = {*target.compat.off, *(_OF_TORCH if there & _CALL_NVCC and not there & _BUILD_BY_TORCH else ())}
    # a range of releases says nothing of a build between them that the table does not list
    builds = _map_unlisted_builds(table, constraints)
    # what a package declares and the spec, or the resolver, has left out by name, was left out on purpose
    out = {one.name for one in constraints if not one.range and one.where in (_EXCLUDED, _LOCK_FILE)}
    facts = _select_applicable_facts(
        [
            fact
            for fact in table.facts
            if fact.id not in off
            and not any(one.version_range and one.name in builds for one in fact.when_and_alternative_conditions())
            and not (is_from_package_metadata(fact) and out & {one.name for one in fact.alternatives[0]})
        ],
        constraints,
    )
    named = {condition.name for fact in facts for condition in fact.when_and_alternative_conditions()} | {
        one.name for one in constraints
    }
    versions = {name: _with_pins(rows, name, constraints) for name, rows in table.versions.items() if name in named}
    return StackProblem(
        versions=versions,
        # where the table knows other versions only, nothing is judged
        constraints=tuple(
            one
            for one in constraints
            if not one.range or any(is_public_version_in_range(one.range, v) for v in versions[one.name])
        ),
        facts=facts,
        unknown=tuple(
            VersionWithoutFacts(one.name, one.range.removeprefix("=="), known)
            for one in constraints
            if one.range and (known := table.versions_with_facts.get(one.name) or builds.get(one.name))
            if one.name in builds or not any(is_public_version_in_range(one.range, version) for version in known)
        ),
        versions_with_facts={name: rows for name, rows in table.versions_with_facts.items() if name in versions},
        names_without_facts=_list_pinned_without_facts(table, listed),
    )


def _map_unlisted_builds(table: CompatTable, constraints: Iterable[Constraint]) -> dict[str, tuple[str, ...]]:
    """Return the packages that are pinned to a pre-release or nightly build which the table does not list."""
    pins = ((one.name, one.range[2:]) for one in constraints if re.fullmatch(r"==[^*,]*", one.range))
    rows = ((name, version, table.versions[name]) for name, version in pins)
    return {name: known for name, version, known in rows if version not in known and Version(version).is_prerelease}


def _list_pinned_without_facts(table: CompatTable, constraints: Iterable[Constraint]) -> tuple[str, ...]:
    """Return the packages, without extras, that the spec pins and that no fact of the table names."""
    named = {
        condition.name.partition("[")[0] for fact in table.facts for condition in fact.when_and_alternative_conditions()
    }
    pinned = {one.name.partition("[")[0] for one in constraints if one.own and one.range and one.where != _LOCK_FILE}
    return tuple(sorted(pinned - named))


def _select_applicable_facts(facts: Iterable[CompatFact], constraints: Iterable[Constraint]) -> tuple[CompatFact, ...]:
    """Return the facts that can come to bear: all that they speak of is fixed, or is needed by what is."""
    there = {one.name for one in constraints if one.range} | set(MACHINE) | set(_BUILD)
    waiting, found = list(facts), list[CompatFact]()
    while True:
        fit, left = list[CompatFact](), list[CompatFact]()
        for fact in waiting:
            (fit if all(one.must_be_absent or one.name in there for one in fact.when) else left).append(fact)
        if not fit:
            return tuple(found)
        found, waiting = found + fit, left
        there |= {one.name for fact in fit for row in fact.alternatives for one in row if not one.must_be_absent}


def _with_pins(versions: tuple[str, ...], name: str, constraints: Iterable[Constraint]) -> tuple[str, ...]:
    """Return the versions of a name, those among them that are pinned and that the table does not list."""
    pins = [one.range[2:] for one in constraints if one.name == name and re.fullmatch(r"==[^*,]*", one.range)]
    return tuple(sorted({*versions, *pins}, key=Version, reverse=True)) if set(pins) - set(versions) else versions


# Source: Dao-AILab/flash-attention setup.py, `get_wheel_url`; causal-conv1d and mamba name theirs alike.
_BUILT_FOR = re.compile(r"cu(\d\d)\d*torch(\d+\.\d+)cxx11abi(true|false)")
# Of the wheels of CUDA 12 that of the compiler has ptxas alone, and another name.
_NVCC_WHEEL = "nvidia-cuda-nvcc"
_NVCC_DEB = re.compile(r"cuda-(?:compiler|minimal-build|nvcc|toolkit)-(\d+)-(\d+)")
_GLIBC = {"debian:bookworm": "2.36"}
_NVCC_OF_DISTRIBUTION = {"debian:bookworm": "11.8"}  # its package nvidia-cuda-toolkit
_COMPILED, REBUILT = "-compiled", "-rebuilt"
_EXCLUDED, _LOCK_FILE = "python.exclude", "lock.json"
# Without them its build leaves its operators to the first use: source: DeepSpeed setup.py, op_builder/all_ops.py.
_SWITCHES = {"deepspeed": ("DS_BUILD_FUSED_ADAM", "DS_BUILD_CPU_ADAM")}


def _list_constraints(table: CompatTable, target: Target, lock: Lock | None) -> Iterator[Constraint]:
    yield from _constrain_machine(table, target)
    python_is_own = not target.base.bootstrap  # Debian has one
    yield Constraint("python", f"=={target.python.version}", "python.version", own=python_is_own)
    for tree in target.git:
        if version := _version_of_tag(tree.ref):
            yield from _constrain_package(f"{tree.name}=={version}", f"git.{tree.name}.ref")
    for group in target.stack:
        for text in group.packages:
            yield from _constrain_package(text, f"stack.{group.name}")
        for wheel in group.wheels:
            yield from _constrain_by_wheel(wheel, f"stack.{group.name}.wheels")
    yield from _constrain_compiled(table, target)
    yield from _constrain_rebuilt(table, target)
    yield from _constrain_excluded(target)
    for locked in lock.groups if lock else ():
        for package in locked.packages:
            name = canonicalize_name(package.name)
            yield Constraint(name, _exactly(package.version), _LOCK_FILE)
            if name.startswith("nvidia-nccl-"):
                yield Constraint("nccl", _exactly(package.version), _LOCK_FILE, own=False)


def _constrain_machine(table: CompatTable, target: Target) -> Iterator[Constraint]:
    hardware = target.hardware
    arch = re.fullmatch(r"sm_(\d+)(\d)", hardware.arch)
    yield Constraint("arch", f"=={arch[1]}.{arch[2]}" if arch else "", "hardware.arch", own=False)
    if hardware.grade:
        is_datacenter = int(hardware.grade == "datacenter")
        yield Constraint("datacenter", f"=={is_datacenter}", "hardware.grade", own=False)
    if branch := table.driver_branch_by_cuda.get(hardware.cuda_driver):
        yield Constraint("driver", f"=={branch}", "hardware.cuda_driver", own=False)
    if glibc := _GLIBC.get(target.base.bootstrap):
        yield Constraint("glibc", f"=={glibc}", "base.bootstrap", own=False)
    elif found := re.search(r"manylinux_(2_\d+)", target.python.platform):
        yield Constraint("glibc", f"=={found[1].replace('_', '.')}", "python.platform", own=False)
    yield from _constrain_torch_build(target)
    for name, version in target.base.holds.items():
        yield Constraint(canonicalize_name(name), _exactly(version), "base.holds", own=False)
    yield from _constrain_cuda_compiler(target)
    if target.base.bootstrap and not any(package.startswith("cuda-compat") for package in target.base.packages):
        yield Constraint("cuda-compat", "", "base.packages")


def _constrain_torch_build(target: Target) -> Iterator[Constraint]:
    """Yield which build of torch it is: a channel, the base's own, or the index's default."""
    group = next((group for group in target.stack if group.channel), None)
    local = Version(target.base.holds["torch"]).local if "torch" in target.base.holds else None
    channel, where = (group.channel, f"stack.{group.name}.channel") if group else (local or "", "base.holds")
    if found := re.fullmatch(r"cu(\d+)(\d)", channel):
        yield Constraint("default", "==0", where)
        yield Constraint("cuda", f"=={found[1]}.{found[2]}", where)
    elif channel == "cpu":
        yield from (Constraint(name, "", where) for name in ("cuda", "nccl", "abi", "default"))
    elif not channel:
        yield Constraint("default", "==1", "stack")


def _constrain_cuda_compiler(target: Target) -> Iterator[Constraint]:
    """Yield which CUDA compiler there is: of a wheel or an apt package; a base image may have one that nobody names."""
    for group in target.stack:
        for constraint in (row for text in group.packages for row in _constrain_package(text, f"stack.{group.name}")):
            if constraint.name == _NVCC_WHEEL:
                yield constraint._replace(name="nvcc")
                return
    for package in target.base.packages:
        if named := _NVCC_DEB.fullmatch(package):
            yield Constraint("nvcc", f"=={named[1]}.{named[2]}", "base.packages")
            return
    if "nvidia-cuda-toolkit" in target.base.packages and (cuda := _NVCC_OF_DISTRIBUTION.get(target.base.bootstrap)):
        yield Constraint("nvcc", f"=={cuda}", "base.packages")
        return
    if target.base.bootstrap:
        yield Constraint("nvcc", "", _("base.packages and the stack"))


def _constrain_by_wheel(wheel: Wheel, where: str) -> Iterator[Constraint]:
    """Yield the version of a wheel, and what its name says that it was built for."""
    yield Constraint(wheel.distribution_name, _exactly(wheel.version), where)
    if built := _BUILT_FOR.search(wheel.version):
        yield Constraint("cuda", f"=={built[1]}.*", where, own=False)
        yield Constraint("torch", f"=={built[2]}.*", where, own=False)
        yield Constraint("abi", f"=={int(built[3] == 'true')}", where, own=False)
    if python := re.search(r"-cp(\d)(\d+)-cp", wheel.file):
        yield Constraint("python", f"=={python[1]}.{python[2]}", where, own=False)


def _constrain_compiled(table: CompatTable, target: Target) -> Iterator[Constraint]:
    """Yield what wheels that are compiled are, and which of those that facts ask for there are not."""
    made = set()
    for group, entry in target.compile_entries:
        where, name = f"stack.{group.name}.compile", entry.distribution_name
        version = entry.version or _version_of_tag(entry.ref)
        yield Constraint(name, _exactly(version) if version else ">=0", where)
        if entry.cuda:
            major = int(entry.cuda.partition(".")[0])
            yield Constraint("cuda", f">={major},<{major + 1}", where)
        if all(entry.env.get(switch) == "1" for switch in _SWITCHES.get(name, ())):
            made.add(f"{name}{_COMPILED}")
    for name in table.versions:
        if name.endswith(_COMPILED):
            yield Constraint(name, "==1" if name in made else "", "stack.compile")


def _constrain_rebuilt(table: CompatTable, target: Target) -> Iterator[Constraint]:
    """Yield which packages are not the wheels of the package index: their CUDA may be another one."""
    made = {str(canonicalize_name(name)) for name in (*target.base.holds, *(tree.name for tree in target.git))}
    made |= {wheel.distribution_name for group in target.stack for wheel in group.wheels}
    made |= {entry.distribution_name for __, entry in target.compile_entries}
    for name in table.versions:
        if name.endswith(REBUILT):
            yield Constraint(name, "==1" if name.removesuffix(REBUILT) in made else "", "stack", own=False)


def _constrain_excluded(target: Target) -> Iterator[Constraint]:
    held = {str(canonicalize_name(name)) for name in target.base.holds}
    held |= {wheel.distribution_name for group in target.stack for wheel in group.wheels}
    held |= {entry.distribution_name for __, entry in target.compile_entries}
    for name in map(canonicalize_name, target.python.exclude):
        if name not in held:
            yield Constraint(name, "", _EXCLUDED)


def _constrain_package(text: str, where: str) -> Iterator[Constraint]:
    try:
        asked = Requirement(text)
        for spec in asked.specifier:
            Version(spec.version.removesuffix(".*"))
    except (InvalidRequirement, InvalidVersion):  # the lock refuses it with a better message
        return
    name = canonicalize_name(asked.name)
    yield Constraint(name, str(asked.specifier) or ">=0", where)
    yield from (Constraint(f"{name}[{extra}]", ">=0", where) for extra in sorted(asked.extras))


def _version_of_tag(ref: str) -> str:
    found = re.fullmatch(r"(?:[a-z]+_)?v(\d[0-9a-z.]*)", ref)
    try:
        return str(Version(found[1])) if found else ""
    except InvalidVersion:
        return ""


def _exactly(version: str) -> str:
    return f"=={Version(version).public}"
