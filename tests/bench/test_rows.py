"""Every row of the benchmarks can be measured on this tree: once, with small things, whatever the figure."""

from __future__ import annotations

import pytest

from benchmarks.finding import NOT_HERE, RUNS, find
from benchmarks.goal import Goal
from benchmarks.goals import GOALS
from benchmarks.place import Kept


def without_engine(goal: Goal) -> bool:
    """Whether a row needs no engine; one that does waits for its turn with what else uses it."""
    return not 7 <= int(goal.number) <= 22


def ids(goal: Goal) -> str:
    """Return what a row is called."""
    return f"{goal.key} {goal.what}"


def measured(goal: Goal, kept: Kept) -> None:
    """Measure a row once."""
    finding = find(goal, kept, rounds=1)
    if finding.verdict.startswith(NOT_HERE):
        pytest.skip(finding.verdict)
    assert finding.verdict == RUNS


@pytest.mark.parametrize("goal", [*filter(without_engine, GOALS)], ids=ids)
def test_the_row_runs(goal: Goal, kept: Kept) -> None:
    measured(goal, kept)
