"""Two runs in one page: what differs between them, and their metrics drawn over each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlbox.report.metric_series import Metric
from rlbox.report.plots import Plot, Series, draw_plot
from rlbox.report.read import RunRecord
from rlbox.report.run_diff import diff_runs, different

MOST_PLOTS = 24
"""Metrics of both runs that are drawn over each other; what differs of the others is in the table."""


def beside(record: RunRecord, other: RunRecord) -> Mapping[str, Any]:
    """Return what the page shows of another run, which counts as the one before.

    Raises
    ------
    SpecError
        The plan of one cannot be read.
    """
    found = diff_runs(other, record)
    return {
        "before": other.state.run_id,
        "after": record.state.run_id,
        "state": other.state.state,
        "same": not different(found),
        "rows": [vars(difference) for difference in found],
        "plots": _plots(record, other),
    }


def _plots(record: RunRecord, other: RunRecord) -> Sequence[Plot]:
    """Return a plot for each metric that both runs have, over its steps."""
    before = {(one.stage, one.series.name): one for one in other.metrics}
    pairs = [
        (one, before[one.stage, one.series.name]) for one in record.metrics if (one.stage, one.series.name) in before
    ]
    drawn = (_plot(one, old, record, other) for one, old in pairs if one.x == old.x != "time")
    return [plot for plot in drawn if plot][:MOST_PLOTS]


def _plot(one: Metric, old: Metric, record: RunRecord, other: RunRecord) -> Plot | None:
    series = [_named(old, other.state.run_id), _named(one, record.state.run_id)]
    return draw_plot(one.series.name, series, unit=one.series.unit, note=one.stage, x=one.x)


def _named(one: Metric, name: str) -> Series:
    return replace(one.series, name=name)
