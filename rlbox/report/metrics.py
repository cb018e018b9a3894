"""What a run measured, metric by metric and stage by stage: from its metrics.jsonl files and from its logs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlbox.job.names import METRICS_FILE
from rlbox.logs.progress import ProgressReading, get_metric_rank, parse_metrics_record, read_log_progress
from rlbox.record.state import StageState
from rlbox.report.plots import Points, Series, compute_trend_or_empty, thin_points
from rlbox.system.json_files import read_last_json_lines_forward
from rlbox.system.safe_files import find_files_named

XKind = Literal["step", "time", "count"]
_RATE = "rate"
_MOST_POINTS = 1 << 18
"""Points of all metrics that are held while reading."""

_DEEPEST = 3
_Raw = list[tuple[float | None, float | None, float]]
"""Step, time and value of each reading."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric of one stage; `source` is the file it was read from, `x` what its points are drawn over.

    `trend` are the means of stretches of its points, where there are many.
    """

    stage: str
    source: str
    x: XKind
    series: Series
    trend: Points = ()


def read_file_and_log_metrics(
    run_dir: Path, stages: tuple[StageState, ...], max_points_per_metric: int
) -> list[Metric]:
    """Return the metrics of a run, losses and rewards first, each with `max_points_per_metric` points at most.

    What a stage wrote into a metrics.jsonl counts more than the same name in its log.
    """
    found: dict[tuple[str, str, str], _Raw] = {}
    held = 0
    for stage, source, at, reading in _readings(run_dir, stages):
        for name, value in [*reading.metrics.items(), *((f"{_RATE} {unit}", v) for unit, v in reading.rates.items())]:
            found.setdefault((stage, source, name), []).append((reading.step, at, value))
            held += 1
        if held > _MOST_POINTS:
            found = {key: raw[::2] for key, raw in found.items()}
            held //= 2
    best = _without_doubles(found)
    metrics = [_metric(key, raw, max_points_per_metric) for key, raw in best.items() if len(raw) > 1]
    order = {stage.name: number for number, stage in enumerate(stages)}
    return sorted(
        metrics, key=lambda m: (get_metric_rank(m.series.name), order.get(m.stage, 0), m.source, m.series.name)
    )


def _readings(
    run_dir: Path, stages: tuple[StageState, ...]
) -> Iterator[tuple[str, str, float | None, ProgressReading]]:
    for path in _metric_files(run_dir):
        own = next((s.name for s in stages if s.directory and (run_dir / s.directory) in path.parents), "")
        for row in read_last_json_lines_forward(path):
            if reading := parse_metrics_record(row):
                if "eval" in row:  # of another kind than the rows of steps beside it
                    reading = ProgressReading(
                        metrics={f"eval {name}": value for name, value in reading.metrics.items()}
                    )
                yield str(row.get("stage") or own), METRICS_FILE, _row_time(row), reading
    for stage in stages:
        for service in ("stage", *(service.name for service in stage.services)):
            for at, reading in read_log_progress(run_dir / stage.directory / f"{service}.log"):
                yield stage.name, f"{service}.log", at, reading


def _metric_files(run_dir: Path) -> list[Path]:
    return find_files_named(run_dir, METRICS_FILE, max_depth=_DEEPEST)


def _row_time(row: dict[str, object]) -> float | None:
    for name in ("time", "timestamp", "_timestamp"):
        value = row.get(name)
        if isinstance(value, (int, float)) and value > 1e9:
            return float(value)
    return None


def _without_doubles(found: dict[tuple[str, str, str], _Raw]) -> dict[tuple[str, str, str], _Raw]:
    written = {(stage, name) for stage, source, name in found if source == METRICS_FILE}
    return {key: raw for key, raw in found.items() if key[1] == METRICS_FILE or (key[0], key[2]) not in written}


def _metric(key: tuple[str, str, str], raw: _Raw, limit: int) -> Metric:
    stage, source, name = key
    steps = [step for step, _, _ in raw if step is not None]
    times = [at for _, at, _ in raw if at is not None]
    x: XKind = "step" if len(steps) == len(raw) else "time" if len(times) == len(raw) else "count"
    chosen = steps if x == "step" else times if x == "time" else range(len(raw))
    points = sorted(zip(map(float, chosen), (value for _, _, value in raw), strict=True))
    unit = name.removeprefix(f"{_RATE} ") if name.startswith(f"{_RATE} ") else ""
    series = Series(name=unit or name, points=thin_points(points, limit), unit=unit)
    return Metric(stage=stage, source=source, x=x, series=series, trend=compute_trend_or_empty(points))
