"""What users ask of an environment, by number, and the causes that logs show: the schemas of two files of `data/`."""

from __future__ import annotations

from pydantic import Field

from rlbox.spec.kinds import Cover, Frozen, Line, Name


class Demand(Frozen):
    """One demand of the inventory."""

    title: Line
    environment: bool = Field(False, description="it is about the image, its container, its entrypoint or the machine")
    doctor: tuple[Name, ...] = Field((), description="ids of what `rlbox doctor` finds when it is not met")
    reason: Line = Field("", description="why nothing covers it")


class DemandTable(Frozen):
    """The inventory; P numbers are from the seeds, B numbers from beyond them."""

    demand: dict[Cover, Demand]


class Causes(Frozen):
    """Ids of root causes by family, both in the order in which tables show them."""

    family: dict[Name, tuple[Name, ...]]

    def family_of(self, cause: str) -> str:
        """Return the family of a cause; empty when there is no such cause."""
        return next((family for family, causes in self.family.items() if cause in causes), "")
