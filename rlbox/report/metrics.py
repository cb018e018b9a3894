"""The metrics of a run, from all its metrics files and logs: all points, series for plots, last values.

Names are the common ones of `rlbox/logs/metric_names.toml` where a trainer's key has one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rlbox.amounts import zoned_iso_to_unix
from rlbox.logs.metric_files import MetricFilesReader
from rlbox.logs.metric_names import map_keys_to_common_names
from rlbox.logs.progress import ProgressReading, get_metric_rank, read_log_progress
from rlbox.record.state import StageState
from rlbox.report.plots import PlotSeries, XKind, thin_points_to_extremes

_RATE = "rate"
_MOST_POINTS = 1 << 18
"""Points of all metrics that are held while reading."""


class MetricPoint(NamedTuple):
    step: int | None
    unix_s: float | None
    value: float


@dataclass(frozen=True, kw_only=True)
class MetricSeries:
    """One metric of one stage: all points in the order of their source, and the series of a plot, drawn over `x`.

    `source` is a log, or format and folder of a metrics file, with the trainer's name if it is another one.
    """

    stage: str
    source: str
    x: XKind
    series: PlotSeries
    points: Sequence[MetricPoint]


class _SourcedReading(NamedTuple):
    stage: str
    source: str
    unix_s: float | None
    reading: ProgressReading


def read_metrics(
    run_dir: Path, stages: Sequence[StageState], max_points_per_series: int, *, read_logs: bool = True
) -> list[MetricSeries]:
    """Return the metrics of a run, losses and rewards first.

    If several sources of a stage hold a metric, files count more than logs, and the most exact format more than others.
    """
    found = _collect_points(run_dir, stages, read_logs=read_logs)
    keys_by_group = defaultdict[tuple[str, str], list[str]](list)
    for stage, source, key in found:
        keys_by_group[stage, source].append(key)
    names = {group: map_keys_to_common_names(keys) for group, keys in keys_by_group.items()}
    format_by_metric: dict[tuple[str, str], str] = {}
    metrics = []
    for (stage, source, key), points in found.items():  # the most exact source first
        name, file_format = names[stage, source].get(key, key), source.partition(" ")[0].rpartition(".")[2]
        if format_by_metric.setdefault((stage, name), file_format) == file_format:
            origin = source if name == key else f"{source}: {key}"
            metrics.append(_make_series(stage, origin, name, points, max_points_per_series))
    order = {stage.name: number for number, stage in enumerate(stages)}
    return sorted(
        metrics, key=lambda m: (get_metric_rank(m.series.name), order.get(m.stage, 0), m.source, m.series.name)
    )


def _collect_points(
    run_dir: Path, stages: Sequence[StageState], *, read_logs: bool
) -> dict[tuple[str, str, str], list[MetricPoint]]:
    found: dict[tuple[str, str, str], list[MetricPoint]] = {}
    held = 0
    for stage, source, at, reading in _iter_readings(run_dir, stages, read_logs=read_logs):
        for name, value in [
            *reading.metrics.items(),
            *((f"{_RATE} {unit}", v) for unit, v in reading.rate_by_unit.items()),
        ]:
            found.setdefault((stage, source, name), []).append(MetricPoint(reading.step, at, value))
            held += 1
        if held > _MOST_POINTS:
            found = {key: points[1 - len(points) % 2 :: 2] for key, points in found.items()}  # the last one stays
            held //= 2
    return found


def _iter_readings(run_dir: Path, stages: Sequence[StageState], *, read_logs: bool) -> Iterator[_SourcedReading]:
    for source, row in MetricFilesReader(run_dir).read_new_rows():
        values = {name: value for name, value in row.values.items() if math.isfinite(value)}
        stage_name = row.stage or _find_stage_or_empty(run_dir / source.partition(" ")[2], row.unix_s, run_dir, stages)
        yield _SourcedReading(stage_name, source, row.unix_s, ProgressReading(step=row.step, metrics=values))
    for stage in stages if read_logs else ():
        for service in ("stage", *(service.name for service in stage.services)):
            for at, reading in read_log_progress(run_dir / stage.directory / f"{service}.log"):
                yield _SourcedReading(stage.name, f"{service}.log", at, reading)


def _find_stage_or_empty(folder: Path, unix_s: float | None, run_dir: Path, stages: Sequence[StageState]) -> str:
    """Return the stage whose directory holds a folder, else the one that ran at a time."""
    for stage in stages:
        if stage.directory and run_dir / stage.directory in (folder, *folder.parents):
            return stage.name
    for stage in reversed(stages):
        began, ended = zoned_iso_to_unix(stage.started_at), zoned_iso_to_unix(stage.ended_at)
        if unix_s and began and began <= unix_s <= (ended or math.inf):
            return stage.name
    return ""


def _make_series(stage: str, source: str, name: str, points: Sequence[MetricPoint], limit: int) -> MetricSeries:
    steps = [point.step for point in points if point.step is not None]
    times = [point.unix_s for point in points if point.unix_s is not None]
    x: XKind = "step" if len(steps) == len(points) else "time" if len(times) == len(points) else "count"
    chosen = steps if x == "step" else times if x == "time" else range(len(points))
    drawn = thin_points_to_extremes(sorted(zip(map(float, chosen), (p.value for p in points), strict=True)), limit)
    unit = name.removeprefix(f"{_RATE} ") if name.startswith(f"{_RATE} ") else ""
    series = PlotSeries(name=unit or name, points=drawn, unit=unit)
    return MetricSeries(stage=stage, source=source, x=x, series=series, points=points)
