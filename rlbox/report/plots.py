"""Plots as SVG, drawn without a library: lines over a number, a time or a count, thinned to what a plot shows. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from rlbox.amounts import GIB, decimal_size_text, zoned_iso_to_unix
from rlbox.record.resources import ResourceSample

_LEFT, _RIGHT, _TOP, _BOTTOM = 82, 628, 10, 194
PLOT_BOX = {"width": 640, "height": 220, "left": _LEFT, "right": _RIGHT, "top": _TOP, "bottom": _BOTTOM}
"""Size of a plot and the edges of its axes, in the units of its drawing."""

XKind = Literal["step", "time", "count"]
COLOURS = 8
_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800)
_MOST_TICKS = 6

Points = tuple[tuple[float, float], ...]
_TICKS = 5


@dataclass(frozen=True, kw_only=True)
class PlotSeries:
    """One line of a plot: `points` are (x, y) by rising x; `unit` is that of y, empty for a bare number."""

    name: str
    points: Points
    unit: str = ""


def thin_points_to_extremes(points: Sequence[tuple[float, float]], limit: int) -> Points:
    """Return at most `limit` of the points, the lowest and the highest of each stretch, so that no spike is lost."""
    if len(points) <= limit:
        return tuple(points)
    stretches = max(1, limit // 2)
    found: list[tuple[float, float]] = []
    for number in range(stretches):
        part = points[number * len(points) // stretches : (number + 1) * len(points) // stretches]
        low, high = min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])
        found += sorted({low, high})
    return tuple(found)


def _axis_ticks(low: float, high: float, most: int = _TICKS) -> list[float]:
    if not math.isfinite(high - low) or high <= low:
        return [low]
    rough = (high - low) / most
    scale = 10.0 ** math.floor(math.log10(rough))
    step = scale * next(factor for factor in (1, 2, 5, 10) if factor * scale >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


@dataclass(frozen=True, kw_only=True)
class PlotLine:
    name: str
    colour: int
    path: str
    dot: tuple[str, str] | None
    first: str
    last: str
    low: str
    high: str
    count: int


class AxisTick(NamedTuple):
    svg_position: str
    label: str


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A drawing of lines with axes; the label of a time is ISO 8601 in UTC."""

    title: str
    note: str
    unit: str
    x: XKind
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_ticks: tuple[AxisTick, ...]
    y_ticks: tuple[AxisTick, ...]
    lines: tuple[PlotLine, ...]


def draw_plot(
    title: str,
    series: Sequence[PlotSeries],
    *,
    unit: str = "",
    note: str = "",
    x: XKind = "step",
    x_range: tuple[float, float] | None = None,
    from_zero: bool = False,
) -> Plot | None:
    """Return the plot of `series`; None when they hold no point.

    The `unit` of y is `bytes`, `bytes/s`, `%`, `W` or any other, empty for a bare number; the x axis has the points'
    own range by default.
    """
    shown = [one for one in series if one.points]
    if not shown:
        return None
    xs = [point[0] for one in shown for point in one.points]
    ys = [point[1] for one in shown for point in one.points]
    across = _padded(*(x_range or (min(xs), max(xs))), share=0.0)
    up = _padded(0.0 if from_zero else min(ys), max(ys), share=0.05)
    up = (0.0, up[1]) if from_zero else up
    return Plot(
        title=title,
        note=note,
        unit=unit,
        x=x,
        x_range=across,
        y_range=up,
        x_ticks=tuple(AxisTick(_number(_place_x(at, across)), text) for at, text in _x_ticks(across, x)),
        y_ticks=tuple(AxisTick(_number(_place_y(at, up)), _tick_text(at, unit)) for at in _y_ticks(up, unit)),
        lines=tuple(_line(one, number % COLOURS, across, up, unit) for number, one in enumerate(shown)),
    )


def _y_ticks(up: tuple[float, float], unit: str) -> list[float]:
    whole = unit in ("bytes", "bytes/s", "%", "W")
    return [at for at in _axis_ticks(*up) if not whole or at == round(at)]


def _value_text(value: float, unit: str) -> str:
    if unit in ("bytes", "bytes/s"):
        return decimal_size_text(value) + unit.removeprefix("bytes")
    text = f"{value:.0f}" if unit in ("%", "W") or (value == int(value) and abs(value) < 1e6) else f"{value:.4g}"
    return f"{text} {unit}".rstrip()


def _tick_text(value: float, unit: str) -> str:
    if unit in ("bytes", "bytes/s"):
        return decimal_size_text(value, six_significant_digits=True) + unit.removeprefix("bytes")
    return _value_text(value, unit if unit in ("%", "W") else "")


def _line(one: PlotSeries, colour: int, across: tuple[float, float], up: tuple[float, float], unit: str) -> PlotLine:
    places = [(_number(_place_x(x, across)), _number(_place_y(y, up))) for x, y in one.points]
    ys = [y for _, y in one.points]
    return PlotLine(
        name=one.name,
        colour=colour,
        path=" ".join(f"{x},{y}" for x, y in places),
        dot=places[0] if len(places) == 1 else None,
        first=_value_text(ys[0], unit),
        last=_value_text(ys[-1], unit),
        low=_value_text(min(ys), unit),
        high=_value_text(max(ys), unit),
        count=len(ys),
    )


def _padded(low: float, high: float, *, share: float) -> tuple[float, float]:
    if high <= low:
        half = abs(low) * 0.1 or 1.0
        return low - half, low + half
    return low - (high - low) * share, high + (high - low) * share


def _place_x(value: float, across: tuple[float, float]) -> float:
    return _LEFT + (value - across[0]) / (across[1] - across[0]) * (_RIGHT - _LEFT)


def _place_y(value: float, up: tuple[float, float]) -> float:
    return _BOTTOM - (value - up[0]) / (up[1] - up[0]) * (_BOTTOM - _TOP)


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _x_ticks(across: tuple[float, float], x: XKind) -> list[tuple[float, str]]:
    low, high = across
    if x != "time":
        return [(at, _value_text(at, "")) for at in _axis_ticks(low, high, _MOST_TICKS) if at == int(at)] or [
            (low, f"{low:g}")
        ]
    step = next((s for s in _TIME_STEPS if (high - low) / s <= _MOST_TICKS), _TIME_STEPS[-1])
    first = math.ceil(low / step)
    places = [number * step for number in range(first, int(high // step) + 1)]
    return [(at, datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="seconds")) for at in places]


_RESOURCE_PLOTS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("cpu", "%", (("all_parts", "cpu_pct"), ("others", "others_pct"))),
    ("load", "", (("load", "load"),)),
    ("pressure", "%", (("for_cpu", "waits_cpu_pct"), ("for_io", "waits_io_pct"), ("for_memory", "waits_memory_pct"))),
    ("memory", "bytes", (("all_parts", "resident_bytes"),)),
    ("disk_io", "bytes/s", (("read", "read_bps"), ("written", "write_bps"))),
    ("network", "bytes/s", (("received", "received_bps"), ("sent", "sent_bps"))),
    ("disk_free", "bytes", (("disk_free", "disk_free_bytes"),)),
)
"""The label of a plot, its unit, and its lines: the label and field of a sample."""
_PART_FIELDS = {"cpu": "cpu_pct", "memory": "resident_bytes"}
_GPU_PLOTS = (("gpu_load", "%", "utilization", 1), ("gpu_power", "W", "power_w", 1),
              ("gpu_memory", "GiB", "memory_bytes", GIB))  # fmt: skip
"""The last is what a value is divided by: a GPU's memory is in the unit of its driver."""
_RESOURCE_POINTS = 600


def draw_resource_plots(samples: Sequence[ResourceSample], labels: Mapping[str, Any]) -> list[Plot]:
    """Return the plots of what was used, each over the time of the run; none without samples."""
    timed = [(at, sample) for sample in samples if (at := zoned_iso_to_unix(sample.t)) is not None]
    if not timed:
        return []

    def over(name: str, value: Callable[[ResourceSample], float | None]) -> PlotSeries:
        points = [(at, y) for at, sample in timed if (y := value(sample)) is not None]
        return PlotSeries(name=name, points=thin_points_to_extremes(points, _RESOURCE_POINTS))

    drawn: list[tuple[str, str, list[PlotSeries]]] = []
    for plot, unit, lines in _RESOURCE_PLOTS:
        series = [over(labels[label], attrgetter(field)) for label, field in lines]
        if field := _PART_FIELDS.get(plot):
            series += [over(name, partial(_read_part, name, field)) for name in _list_largest_parts(samples)]
        drawn.append((plot, unit, series))
    gpus = sorted({gpu.index for _, sample in timed for gpu in sample.gpus})
    for plot, unit, field, divisor in _GPU_PLOTS:
        drawn.append((plot, unit, [over(f"GPU {index}", partial(_read_gpu, index, field, divisor)) for index in gpus]))
    across = (timed[0][0], max(timed[-1][0], timed[0][0] + 1))
    plots = [draw_plot(labels[name], lines, unit=unit, x="time", x_range=across, from_zero=True)
             for name, unit, lines in drawn]  # fmt: skip
    return [plot for plot in plots if plot]


def _list_largest_parts(samples: Sequence[ResourceSample]) -> list[str]:
    most: dict[str, int] = {}
    for sample in samples:
        for name, part in sample.parts.items():
            most[name] = max(most.get(name, 0), part.resident_bytes)
    return sorted(most, key=lambda name: (-most[name], name))[: COLOURS - 1]


def _read_part(name: str, field: str, sample: ResourceSample) -> float | None:
    return getattr(sample.parts[name], field) if name in sample.parts else None


def _read_gpu(index: int, field: str, divisor: int, sample: ResourceSample) -> float | None:
    return next((getattr(gpu, field) / divisor for gpu in sample.gpus if gpu.index == index), None)
