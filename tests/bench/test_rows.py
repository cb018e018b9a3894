"""Every row of the benchmarks can be measured on this tree: once, with small things, whatever the figure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.finding import NOT_HERE, RUNS, find
from benchmarks.goal import Goal
from benchmarks.goals import GOALS
from benchmarks.place import Kept


@pytest.fixture(scope="module")
def kept() -> Iterator[Kept]:
    """What several rows use, made small."""
    kept = Kept(small=True)
    with kept.on_close:
        yield kept


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: f"{goal.key} {goal.what}")
def test_the_row_runs(goal: Goal, kept: Kept) -> None:
    finding = find(goal, kept, rounds=1)
    if finding.verdict.startswith(NOT_HERE):
        pytest.skip(finding.verdict)
    assert finding.verdict == RUNS
