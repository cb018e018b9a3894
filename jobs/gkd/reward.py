"""No reward: the teacher alone teaches. verl's trainer wants a function all the same; it calls `compute_score`."""

from __future__ import annotations

from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    """Return 0 for every answer."""
    return 0.0
