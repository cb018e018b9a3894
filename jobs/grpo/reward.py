"""The reward of the fake data set: how near an answer comes to a number; verl calls `compute_score`."""

from __future__ import annotations

import re
from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    """Return 1 when the last number of the answer is right, else up to 0.5 for one with digits.

    The share of digits tells answers of an untrained model apart, so that a group of them has something to learn from.
    """
    numbers = re.findall(r"-?\d+", solution_str)
    if numbers and numbers[-1] == str(ground_truth).strip():
        return 1.0
    digits = sum(character.isdigit() for character in solution_str)
    return 0.5 * digits / max(1, len(solution_str))
