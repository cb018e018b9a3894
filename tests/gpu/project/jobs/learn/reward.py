"""The reward of the decisions: 1 for the action that is right, and nothing else; verl calls `compute_score`."""

from __future__ import annotations

from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    """Return 1 or 0."""
    return float(solution_str.strip() == ground_truth)
