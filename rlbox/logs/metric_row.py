"""One row of metrics: the numbers that a trainer reported together, under its own names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_STEP_NAMES = (
    "training/global_step", "train/global_step", "global_step", "train/step", "rollout/step", "eval/global_step",
    "eval/step", "step", "rollout", "iteration", "_step",
)  # fmt: skip
"""verl, Transformers and OpenRLHF, slime; `_step` is W&B's own counter of calls."""
_TIME_NAMES = ("time", "timestamp", "_timestamp")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_OLDEST_UNIX_S = 1e9
_LARGEST_STEP = 1 << 53


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """Values by the trainer's name; they may be NaN or infinite. `step` and `unix_s` are None where unknown."""

    step: int | None = None
    unix_s: float | None = None
    values: Mapping[str, float]


def make_metric_row(record: Mapping[str, object]) -> MetricRow | None:
    """Return the numbers of a JSON object, nested names joined by dots; None where it has none.

    `null` counts as NaN: strict JSON writers, orjson among them, write it so.
    """
    values = dict(_iter_numbers(record, ""))
    step_name = next((name for name in _STEP_NAMES if abs(values.get(name, math.inf)) < _LARGEST_STEP), "")
    time_name = next((name for name in _TIME_NAMES if values.get(name, 0.0) > _OLDEST_UNIX_S), "")
    frame = {*_STEP_NAMES, *_TIME_NAMES}
    own = {name: value for name, value in values.items() if name not in frame and not name.startswith("_")}
    if not own:
        return None
    return MetricRow(step=int(values[step_name]) if step_name else None, unix_s=values.get(time_name), values=own)


def _iter_numbers(record: Mapping[str, object], prefix: str) -> Iterator[tuple[str, float]]:
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and "_type" in value:  # a histogram, a table or an image of W&B
            continue
        if isinstance(value, Mapping):
            yield from _iter_numbers(value, f"{name}.")
        elif value is None:
            yield name, math.nan
        elif isinstance(value, str):
            if value in _NOT_FINITE:
                yield name, _NOT_FINITE[value]
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield name, _to_float(value)


def _to_float(number: int | float) -> float:
    try:
        return float(number)
    except OverflowError:  # JSON has integers of any size
        return math.inf if number > 0 else -math.inf
