"""Rows of the benchmarks that need an engine: measured once, with small things, whatever the figure."""

from __future__ import annotations

import itertools

import pytest
from test_rows import ids, measured, without_engine

from benchmarks.goal import Goal
from benchmarks.goals import GOALS
from benchmarks.place import Kept


@pytest.mark.parametrize("goal", [*itertools.filterfalse(without_engine, GOALS)], ids=ids)
def test_the_row_runs(goal: Goal, kept: Kept) -> None:
    measured(goal, kept)
