"""What fits together: facts about packages, GPUs and drivers. The schema of `compat.toml`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version
from pydantic import Field, model_validator

from rlbox.config.schema import Frozen, Name, check_spec
from rlbox.config.toml_files import load_toml
from rlbox.planner.requirements import load_releases
from rlbox.planner.stack_fact import Fact, VersionText

_MACHINE = frozenset(("arch", "datacenter", "default", "driver", "python", "glibc"))


class TorchChannels(Frozen):
    """The CUDA versions that torch has builds with beside that of the package index."""

    versions: tuple[VersionText, ...] = Field(min_length=1)
    channels: tuple[VersionText, ...] = Field(min_length=1)
    source: str = Field(min_length=1)


class CompatTable(Frozen):
    """The table as a file, to which what metadata says is added.

    `versions` are those that the solver may choose of what metadata does not list, the newest first. `branches` map the
    newest CUDA that a driver takes to the driver's branch.
    """

    versions: dict[Name, tuple[VersionText, ...]]
    branches: dict[VersionText, VersionText] = Field(default_factory=dict)
    torch: tuple[TorchChannels, ...]
    fact: tuple[Fact, ...]

    @model_validator(mode="after")
    def _consistent(self) -> CompatTable:
        facts = self.facts()
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

    def known_versions(self, name: str) -> tuple[str, ...]:
        """Return the versions that facts speak of, where those of a name have facts of their own; else nothing."""
        if read := load_releases().read.get(name):
            return read
        conditions = (condition for fact in self.fact for condition in fact.when if condition.name == name)
        own = name not in _MACHINE and any(one.range.startswith("==") for one in conditions)
        return self.versions.get(name, ()) if own else ()

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts of the file."""
        return (*(fact for row in self.torch for fact in _channel_facts(row)), *self.fact)

    def all_facts(self) -> tuple[Fact, ...]:
        """Return every fact, those of metadata among them."""
        return (*self.facts(), *load_releases().facts)


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
    nccl = load_releases().nccl.get(version)
    return (f"nccl=={nccl}",) if nccl and Version(cuda).major > 11 else ()


COMPAT = Path(__file__).with_name("compat.toml")


@cache
def load_compat() -> CompatTable:
    """Return the shipped table of what fits together."""
    return check_spec(CompatTable, load_toml(COMPAT), str(COMPAT))
