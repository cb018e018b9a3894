"""What `rlbox components` imports: the schema of `components.toml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from rlbox.spec.check import check_spec
from rlbox.spec.kinds import Frozen, Line

TABLE = Path(__file__).with_name("components.toml")
Import = Annotated[str, StringConstraints(pattern=r"^\w+(\.\w+)*(:\w+)?$")]


class Component(Frozen):
    """A package, or git tree, of a stack."""

    name: Line
    package: str = Field("", description="its canonical name in a lock; empty for one that is no package")
    also: tuple[Line, ...] = Field((), description="packages that have the same modules")
    imports: tuple[Import, ...] = Field(min_length=1, description="MODULE or MODULE:ATTRIBUTE, imported in turn")

    @property
    def module(self) -> str:
        """The module by which it is found."""
        return self.imports[0].partition(":")[0].partition(".")[0]

    @property
    def packages(self) -> tuple[str, ...]:
        """The names that it can have in a lock."""
        return (self.package, *self.also) if self.package else self.also


class Components(Frozen):
    """The table."""

    part: tuple[Component, ...]


@cache
def load_components() -> tuple[Component, ...]:
    """Return the shipped table."""
    from rlbox.spec.load import load_toml

    return check_spec(Components, load_toml(TABLE), str(TABLE)).part
