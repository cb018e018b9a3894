"""What users ask of an environment, by number, which demand is met by what, and what is wrong with the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from pydantic import Field

from rlbox.fixes.fix import Fix
from rlbox.spec.kinds import Cover, Frozen, Line, Name

# Tier 1 of the inventory beyond the seeds, hit by most users of these stacks: a reason is not enough.
FIRST_TIER = tuple(f"B{number:03}" for number in range(1, 30))


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


@dataclass(frozen=True, kw_only=True)
class CoverageRow:
    """One demand with what covers it besides `demand.doctor`: fixes, and lint rules by their ids."""

    number: str
    demand: Demand
    fixes: tuple[Fix, ...]
    rules: tuple[str, ...]


def coverage_rows(
    demands: Mapping[str, Demand],
    fixes: Sequence[Fix],
    rules: Mapping[str, Sequence[str]],
) -> tuple[CoverageRow, ...]:
    """Return a row for every demand, in their order; `rules` maps ids of lint rules to the numbers that they cover."""
    return tuple(
        CoverageRow(
            number=number,
            demand=demand,
            fixes=tuple(fix for fix in fixes if number in fix.covers),
            rules=tuple(name for name, covers in rules.items() if number in covers),
        )
        for number, demand in demands.items()
    )


def fix_gap(fix: Fix, faults: Set[str]) -> str:
    """Return what a fix lacks to count for a demand on the environment; `faults` are the ids that have a fault test."""
    if fix.benign or fix.untested:
        return ""
    if not fix.check and not fix.bake.refuse:
        return f"fix {fix.id} has no check"
    return "" if fix.id in faults else f"fix {fix.id} has no fault test and does not say why"


def coverage_problems(rows: Iterable[CoverageRow], faults: Set[str]) -> tuple[str, ...]:
    """Return what is not covered, and reasons that are no longer true; nothing when all is well."""
    return tuple(problem for row in rows if (problem := _problem(row, faults)))


def _problem(row: CoverageRow, faults: Set[str]) -> str:
    gaps = [gap for fix in row.fixes if (gap := fix_gap(fix, faults))]
    fixed = len(gaps) < len(row.fixes)
    covered = fixed or bool(row.demand.doctor) or (not row.demand.environment and bool(row.fixes or row.rules))
    if covered and row.demand.reason:
        return f"{row.number}: covered, so its reason is stale: {row.demand.reason}"
    if not fixed and row.number in FIRST_TIER:
        return f"{row.number}: most users meet it, and no fix covers it" + _because(gaps)
    if not covered and not row.demand.reason:
        return f"{row.number}: neither covered nor given a reason" + _because(gaps)
    return ""


def _because(gaps: Sequence[str]) -> str:
    return f" ({'; '.join(gaps)})" if gaps else ""


def unknown_numbers(demands: Mapping[str, Demand], *declared: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return a line for each number that something covers although there is no such demand."""
    return tuple(
        f"{name}: covers {number}, which is no demand"
        for found in declared
        for name, covers in found.items()
        for number in covers
        if number not in demands
    )
