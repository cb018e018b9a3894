"""The scores of one checkpoint, made from the rows of its problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rlbox.evaluation.scores import grouped, pass_at, score

Row = Mapping[str, Any]
"""One answer: `problem`, `number`, `outcome`, `runs`, `passed`, `executed`, `finish`, `tokens`, `text`."""
ACCEPTED, RUNS = "accepted_at_1", "exec_success_rate"


def set_scores(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the figures of one suite; shares are means over its problems, with their intervals.

    `accepted_at_1`: every run right. `exec_success_rate`: every run ended by itself with exit status 0. With several
    answers to a problem, `pass_at_k` for the numbers of answers that are powers of two.
    """
    right = figure(rows, ACCEPTED)
    found: dict[str, Any] = {"problems": len(right), "answers": len(rows)}
    for name in (ACCEPTED, RUNS):
        one = score(figure(rows, name))
        found |= {name: one.value, f"{name}_interval": [one.low, one.high]}
    samples = min(map(len, right.values()))
    powers = [2**power for power in range(1, samples.bit_length()) if 2**power <= samples]
    if powers:
        found["pass_at"] = {str(k): _pass_at(k, right) for k in powers}
    count = len(rows)
    return found | {
        "pass_ratio": sum(row["passed"] / max(1, row["runs"]) for row in rows) / count,
        "truncated": sum(row["finish"] == "length" for row in rows) / count,
        "mean_tokens": sum(row["tokens"] for row in rows) / count,
        "outcomes": dict(sorted(Counter(str(row["outcome"]) for row in rows).items())),
    }


def figure(rows: Sequence[Row], name: str) -> dict[str, list[float]]:
    """Return one figure of each answer by problem: what pairs of checkpoints are compared by."""
    if name == ACCEPTED:
        return grouped([(str(row["problem"]), float(row["outcome"] == "accepted")) for row in rows])
    return grouped([(str(row["problem"]), float(bool(row["executed"]))) for row in rows])


def _pass_at(k: int, right: Mapping[str, Sequence[float]]) -> float:
    return sum(pass_at(k, int(sum(values)), len(values)) for values in right.values()) / len(right)
