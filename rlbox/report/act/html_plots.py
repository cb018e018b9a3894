"""Which plots a report shows: metrics in the order in which people look at them, and what was used over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from rlbox.amounts import moment
from rlbox.logs.throughput import REST, metric_rank
from rlbox.record.resources import Sample
from rlbox.report.act.metric_series import Metric
from rlbox.report.plots import COLOURS, Plot, draw_plot
from rlbox.report.series import Series

MOST_PLOTS = 60
_FIRST_PLOTS = 12
"""Plots that are shown at once; the others are folded away."""


def metric_plots(metrics: Sequence[Metric], trend: str) -> tuple[list[Plot], list[Plot], int]:
    """Return the plots to show first, those to fold away, and how many metrics are not drawn at all.

    `trend` is what the trend of a metric is called.
    """
    wanted = [one for one in metrics if metric_rank(one.series.name) < REST or one.series.unit][:_FIRST_PLOTS]
    others = [one for one in metrics if one not in wanted]
    first = [plot for one in wanted if (plot := _metric_plot(one, trend))]
    more = [plot for one in others[: MOST_PLOTS - len(first)] if (plot := _metric_plot(one, trend))]
    return first, more, len(metrics) - len(first) - len(more)


def _metric_plot(one: Metric, trend: str) -> Plot | None:
    note = f"{one.stage}, {one.source}" if one.stage else one.source
    series = [one.series, Series(name=trend, points=one.trend)] if one.trend else [one.series]
    return draw_plot(one.series.name, series, note=note, x=one.x, trend=bool(one.trend))


def resource_plots(samples: Sequence[Sample], words: Mapping[str, Any]) -> list[Plot]:
    """Return the plots of what was used, each over the time of the run; none without samples."""
    timed = [(at, sample) for sample in samples if (at := moment(sample.t)) is not None]
    if not timed:
        return []
    parts = _busiest(timed)
    gpus = sorted({gpu.index for _, sample in timed for gpu in sample.gpus})

    def over(name: str, value: Callable[[Sample], float | None]) -> Series:
        return Series(name=name, points=tuple((at, y) for at, sample in timed if (y := value(sample)) is not None))

    def of_part(part: str, field: str) -> Series:
        return over(part, lambda s: getattr(s.parts[part], field) if part in s.parts else None)

    def of_gpu(index: int, field: str) -> Series:
        return over(f"GPU {index}", lambda s: next((getattr(g, field) for g in s.gpus if g.index == index), None))

    def of_run(*named: tuple[str, str]) -> list[Series]:
        return [over(words[word], attrgetter(field)) for word, field in named]

    plots = [
        ("cpu", "%", [*of_run(("all_parts", "cpu_pct")), *(of_part(part, "cpu_pct") for part in parts)]),
        (
            "memory",
            "bytes",
            [*of_run(("all_parts", "resident_bytes")), *(of_part(part, "resident_bytes") for part in parts)],
        ),
        ("disk_io", "bytes/s", of_run(("read", "read_bps"), ("written", "write_bps"))),
        ("network", "bytes/s", of_run(("received", "received_bps"), ("sent", "sent_bps"))),
        ("disk_free", "bytes", of_run(("disk_free", "disk_free_bytes"))),
        ("gpu_load", "%", [of_gpu(index, "utilization") for index in gpus]),
        ("gpu_power", "W", [of_gpu(index, "power_w") for index in gpus]),
        ("gpu_memory", "bytes", [of_gpu(index, "memory_bytes") for index in gpus]),
    ]
    across = (timed[0][0], max(timed[-1][0], timed[0][0] + 1))
    found = [
        draw_plot(words[title], series, unit=unit, x="time", x_range=across, from_zero=True)
        for title, unit, series in plots
    ]
    return [plot for plot in found if plot]


def _busiest(timed: Sequence[tuple[float, Sample]]) -> list[str]:
    """Return the parts that need most memory, as many as can be told apart."""
    most: dict[str, int] = {}
    for _, sample in timed:
        for name, part in sample.parts.items():
            most[name] = max(most.get(name, 0), part.resident_bytes)
    return sorted(most, key=lambda name: (-most[name], name))[: COLOURS - 1]
