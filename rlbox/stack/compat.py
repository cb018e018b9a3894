"""What fits together: facts about packages, GPUs and drivers. The schema of `compat.toml`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from rlbox.spec.check import check_spec
from rlbox.spec.kinds import Frozen, Name
from rlbox.spec.load import load_toml

_MACHINE = frozenset(("arch", "datacenter", "default", "driver", "python", "glibc"))
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
        return not self.range or within(self.range, version)


@cache
def within(versions: str, version: str) -> bool:
    """Return whether a version is in a range; the local part of a version (`+cu128`) is not looked at."""
    return SpecifierSet(versions).contains(Version(version).public, prereleases=True)


def parse_condition(text: str) -> Condition:
    """Return the condition that `NAME`, `!NAME` or `NAME` with a version range means; `ValueError` for all else."""
    found = _CONDITION.fullmatch(text)
    if not found or (found["absent"] and found["range"]):
        raise ValueError(f"{text!r} is no condition: NAME, !NAME, or NAME with a version range")
    try:
        SpecifierSet(found["range"] or "")
    except InvalidSpecifier as error:
        raise ValueError(f"{text!r}: {error}") from error
    return Condition(name=found["name"], range=found["range"] or "", absent=bool(found["absent"]))


def _version(text: str) -> str:
    return str(Version(text)) and text


Clause = Annotated[Condition, BeforeValidator(lambda one: parse_condition(one) if isinstance(one, str) else one)]
VersionText = Annotated[str, AfterValidator(_version)]


class Fact(Frozen):
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
            raise ValueError("set exactly one of needs and any")
        return self

    @property
    def rows(self) -> tuple[tuple[Condition, ...], ...]:
        """The rows of which one must hold."""
        return self.any or (self.needs,)

    def conditions(self) -> tuple[Condition, ...]:
        """Return every condition."""
        return (*self.when, *(condition for row in self.rows for condition in row))


class TorchBuild(Frozen):
    """What torch's wheel on the package index is built with, and the CUDA versions of its other channels."""

    versions: tuple[VersionText, ...] = Field(min_length=1)
    cuda: VersionText
    nccl: VersionText
    channels: tuple[VersionText, ...] = ()
    source: str = Field(min_length=1)


class CompatTable(Frozen):
    """The table as a file: `versions` are those that the solver may choose, the newest first.

    `branches` map the newest CUDA that a driver takes to the driver's branch.
    """

    versions: dict[Name, tuple[VersionText, ...]]
    branches: dict[VersionText, VersionText] = Field(default_factory=dict)
    torch: tuple[TorchBuild, ...]
    fact: tuple[Fact, ...]

    @model_validator(mode="after")
    def _consistent(self) -> CompatTable:
        facts = self.facts()
        ids = [fact.id for fact in facts]
        problems = [f"two facts have the id {one!r}" for one in sorted({one for one in ids if ids.count(one) > 1})]
        named = {condition.name for fact in facts for condition in fact.conditions()}
        problems += [f"versions: nothing is said of {name!r}" for name in sorted(named - set(self.versions))]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def by_version(self) -> frozenset[str]:
        """Names whose versions have facts of their own: of one that is not listed nothing is known."""
        conditions = (condition for fact in self.facts() for condition in fact.when)
        return frozenset(one.name for one in conditions if one.range.startswith("==")) - _MACHINE

    def facts(self) -> tuple[Fact, ...]:
        """Return every fact, those of torch's builds among them."""
        return (*(fact for build in self.torch for fact in _build_facts(build)), *self.fact)


def _build_facts(build: TorchBuild) -> Iterator[Fact]:
    for version in build.versions:
        row: dict[str, Any] = {
            "id": f"torch-{version.replace('.', '-')}",
            "says": f"torch {version} of the package index is built with CUDA {build.cuda} and NCCL {build.nccl}",
            "when": (f"torch=={version}", "default==1"),
            "needs": (f"cuda=={build.cuda}", f"nccl=={build.nccl}"),
            "source": build.source,
        }
        yield Fact.model_validate(row)
        if build.channels:
            row |= {
                "id": f"{row['id']}-channels",
                "says": f"torch {version} has builds with CUDA {', '.join(build.channels)}",
                "when": (f"torch=={version}", "default==0", "cuda"),
                "needs": (),
                "any": tuple((f"cuda=={cuda}", *_nccl(build, cuda)) for cuda in build.channels),
            }
            yield Fact.model_validate(row)


def _nccl(build: TorchBuild, cuda: str) -> tuple[str, ...]:
    """Return the NCCL of a channel: that of the release, but for CUDA 11, which keeps an older one."""
    return (f"nccl=={build.nccl}",) if Version(cuda).major > 11 else ()


COMPAT = Path(__file__).with_name("compat.toml")


@cache
def load_compat() -> CompatTable:
    """Return the shipped table of what fits together."""
    return check_spec(CompatTable, load_toml(COMPAT), str(COMPAT))
