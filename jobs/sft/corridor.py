"""What loss and gradient norm are expected to do: said, not enforced; the gates decide."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

# step: (train/loss from, to), (val/loss from, to)
EXPECTED = {
    100: ((0.8, 1.2), (1.0, 1.5)),
    200: ((0.5, 0.8), (0.8, 1.2)),
    300: ((0.3, 0.6), (0.8, 1.5)),
    378: ((0.2, 0.5), (0.8, 2.0)),
}
LEARNS = 20  # steps within which the loss must begin to fall: around the tenth is usual
SPIKE = 10.0  # times the median of all gradient norms

Series = Sequence[tuple[int, float]]


def read_series(path: Path, key: str) -> list[tuple[int, float]]:
    """Return (step, value) of `key` in a file that verl's file logger wrote."""
    text = path.read_text() if path.is_file() else ""
    rows = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]  # the last may be torn
    return [(row["step"], float(row["data"][key])) for row in rows if key in row["data"]]


def flat(train: Series) -> list[str]:
    """Return a line when the loss of a training that began at step 1 did not fall over its first steps."""
    values = [value for step, value in train if step <= LEARNS]
    third = len(values) // 3
    if train[0][0] != 1 or third == 0 or sum(values[-third:]) < sum(values[:third]):
        return []
    shown = f"{sum(values[:third]) / third:.3f} to {sum(values[-third:]) / third:.3f}"
    return [f"[FAIL] train/loss does not fall within {LEARNS} steps: {shown}; look at the learning rate and the data"]


def notes(train: Series, val: Series, grad_norm: Series) -> list[str]:
    """Return a line for each thing that is not as expected, and one for a rising validation loss, which is."""
    found = []
    for step, (of_train, of_val) in EXPECTED.items():
        for name, series, (low, high) in (("train/loss", train, of_train), ("val/loss", val, of_val)):
            near = [value for at, value in series if abs(at - step) <= 5]
            if near and not low <= (mean := sum(near) / len(near)) <= high:
                found.append(f"[WARN] {name} near step {step} is {mean:.3f}, {low} to {high} was expected")
    if len(val) > 1 and val[-1][1] > min(value for _, value in val):
        found.append("[INFO] val/loss rises again, as expected; the evaluation chooses the checkpoint")
    middle = sorted(value for _, value in grad_norm)[len(grad_norm) // 2] if grad_norm else 0.0
    for step, value in grad_norm:
        if middle and value > SPIKE * middle:
            found.append(f"[WARN] train/grad_norm {value:.1f} at step {step}, {value / middle:.0f} times the median")
    return found
