"""What users ask of an environment, by number, which demand is met by what, and what is wrong with the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rlbox.config.schema import Name, SingleLine, SpecModel
from rlbox.fixes.fix import Fix

# Tier 1 of the inventory beyond the seeds, hit by most users of these stacks: a reason is not enough.
FIRST_TIER = tuple(f"B{number:03}" for number in range(1, 30))


DemandNumber = Annotated[str, StringConstraints(pattern=r"^[PB]\d{3}$")]
State = Literal["works", "changed", "rendered only", "missing"]
"""What became of a demand: met as it stands, met in another form, written but never carried out for real, not there."""
MET: tuple[State, ...] = ("works", "changed")
Test = Annotated[str, StringConstraints(pattern=r"^(tests/[a-z0-9_/]+\.py::test_\w+)?$")]


class Demand(SpecModel):
    """One demand of the inventory."""

    title: SingleLine
    environment: bool = Field(False, description="it is about the image, its container, its entrypoint or the machine")
    fixes: tuple[Name, ...] = Field((), description="fixes that meet it")
    rules: tuple[Name, ...] = Field((), description="lint rules that find it unmet")
    doctor: tuple[Name, ...] = Field((), description="ids of what `rlbox doctor` finds when it is not met")
    state: State = Field("works", description="what became of it; `rendered only` counts as not covered")
    test: Test = Field("", description="the test that fails without what meets it, where no fix of the catalogue does")
    reason: SingleLine = Field("", description="what meets it beside the catalogue, or why nothing does")


class DemandTable(SpecModel):
    """The inventory; P numbers are from the seeds, B numbers from beyond them."""

    demand: dict[DemandNumber, Demand]


class Causes(SpecModel):
    """Ids of root causes by family, both in the order in which tables show them; `without_cause` has ids of fixes."""

    family: dict[Name, tuple[Name, ...]]
    without_cause: dict[Name, tuple[Name, ...]]

    def family_of(self, cause: str) -> str:
        """Return the family of a cause; empty when there is no such cause."""
        return next((family for family, causes in self.family.items() if cause in causes), "")


@dataclass(frozen=True, kw_only=True)
class CoverageRow:
    """One demand with the fixes that meet it."""

    number: str
    demand: Demand
    fixes: tuple[Fix, ...]


def coverage_rows(demands: Mapping[str, Demand], fixes: Sequence[Fix]) -> tuple[CoverageRow, ...]:
    """Return a row for every demand, in their order."""
    return tuple(
        CoverageRow(number=number, demand=demand, fixes=tuple(fix for fix in fixes if fix.id in demand.fixes))
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
    caught = fixed or bool(row.demand.doctor) or (not row.demand.environment and bool(row.fixes or row.demand.rules))
    if row.demand.state not in MET:
        return _open_problem(row)
    if caught and not row.demand.test and row.demand.reason:
        return f"{row.number}: covered, so its reason is stale: {row.demand.reason}"
    if not fixed and row.number in FIRST_TIER:
        return f"{row.number}: most users meet it, and no fix covers it" + _because(gaps)
    if not (caught or row.demand.test):
        return f"{row.number}: {row.demand.state}, but no fix, no check and no test would notice" + _because(gaps)
    return ""


def _open_problem(row: CoverageRow) -> str:
    """Return what is wrong with a row that is not covered, whatever the catalogue has for it."""
    if row.demand.test:
        return f"{row.number}: {row.demand.state}, so no test shows it: {row.demand.test}"
    return "" if row.demand.reason else f"{row.number}: {row.demand.state}, and no reason is given"


def _because(gaps: Sequence[str]) -> str:
    return f" ({'; '.join(gaps)})" if gaps else ""


def unknown_names(demands: Mapping[str, Demand], fixes: Set[str], rules: Set[str]) -> tuple[str, ...]:
    """Return a line for each fix and lint rule that a demand names and that does not exist."""
    return tuple(
        f"{number}: no {kind} {name}"
        for number, demand in demands.items()
        for kind, names, known in (("fix", demand.fixes, fixes), ("lint rule", demand.rules, rules))
        for name in names
        if name not in known
    )
