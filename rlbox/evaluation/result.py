"""The result of one checkpoint: scores by suite, values by problem, comparison of results with one lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlbox.evaluation.lock import EvaluationLock, LockDifference, diff_locks, filter_disallowed, parse_lock
from rlbox.evaluation.scores import (
    PairedDifference,
    ValuesByProblem,
    compute_paired_difference,
    compute_score,
    estimate_pass_at_k,
    group_by_problem,
)
from rlbox.i18n import _

AnswerRecord = Mapping[str, Any]
"""One answer: `problem`, `number`, `outcome`, `runs`, `passed`, `executed`, `finish`, `tokens`, `text`."""
ACCEPTED, RUNS = "accepted_at_1", "exec_success_rate"


def score_suite(rows: Sequence[AnswerRecord]) -> dict[str, Any]:
    """Return the figures of one suite; shares are means over its problems, with their intervals.

    `accepted_at_1`: every run right. `exec_success_rate`: every run ended by itself with exit status 0. With several
    answers to a problem, `pass_at_k` for the numbers of answers that are powers of two.
    """
    right = collect_metric(rows, ACCEPTED)
    found: dict[str, Any] = {"problems": len(right), "answers": len(rows)}
    for name in (ACCEPTED, RUNS):
        one = compute_score(collect_metric(rows, name))
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


def collect_metric(rows: Sequence[AnswerRecord], name: str) -> dict[str, list[float]]:
    """Return one figure of each answer by problem: what pairs of checkpoints are compared by."""
    if name == ACCEPTED:
        return group_by_problem([(str(row["problem"]), float(row["outcome"] == "accepted")) for row in rows])
    return group_by_problem([(str(row["problem"]), float(bool(row["executed"]))) for row in rows])


def _pass_at(k: int, right: Mapping[str, Sequence[float]]) -> float:
    return sum(estimate_pass_at_k(k, int(sum(values)), len(values)) for values in right.values()) / len(right)


SELECTION_RULE = (("codecontests_valid", RUNS), ("codecontests_valid", ACCEPTED))
"""The figures that decide which checkpoint is best, in order (P189)."""


class LocksDifferError(Exception):
    """Two results were made with locks that differ; `fields` says in what."""

    def __init__(self, fields: Sequence[LockDifference]) -> None:
        super().__init__(", ".join(one.field for one in fields))
        self.fields = fields


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """What was found of one checkpoint.

    `scores` are the figures of each suite, `by_problem` maps a suite and a figure to each problem's values.
    """

    name: str
    step: int
    lock: EvaluationLock
    scores: Mapping[str, Mapping[str, Any]]
    by_problem: Mapping[str, Mapping[str, ValuesByProblem]]

    def figure(self, suite: str, name: str) -> ValuesByProblem:
        """Return one figure of a suite by problem; empty where it was not judged."""
        return self.by_problem.get(suite, {}).get(name, {})

    @property
    def problem_names(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.by_problem.values() for of in row.values() for name in of))

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "name": self.name,
            "step": self.step,
            "lock": self.lock.as_json(),
            "scores": {name: dict(row) for name, row in self.scores.items()},
            "by_problem": {
                suite: {name: dict(of) for name, of in row.items()} for suite, row in self.by_problem.items()
            },
        }


def parse_result(document: Any) -> EvaluationResult:
    """Return a result that was written; `ValueError` where it is none."""
    if not isinstance(document, dict) or document.get("schema") != 1:
        raise ValueError(_("this is no result of an evaluation"))
    try:
        return EvaluationResult(
            name=str(document["name"]),
            step=int(document["step"]),
            lock=parse_lock(document["lock"]),
            scores={str(name): dict(row) for name, row in document["scores"].items()},
            by_problem={
                str(suite): {str(name): _values(of) for name, of in row.items()}
                for suite, row in document["by_problem"].items()
            },
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(_("this is no result of an evaluation: {error!r}").format(error=error)) from error


def _values(of: Mapping[str, Any]) -> dict[str, list[float]]:
    return {str(problem): [float(value) for value in values] for problem, values in of.items()}


def require_comparable(results: Sequence[EvaluationResult], across: Sequence[str] = ()) -> list[LockDifference]:
    """Return the fields in which results differ, all allowed by `across`; raise `LocksDifferError` for others.

    Suites that one of two was not judged on are no difference: what both were judged on is compared.
    """
    found: dict[str, LockDifference] = {}
    for one in results[1:]:
        common = set(results[0].by_problem) & set(one.by_problem)
        changes = diff_locks(results[0].lock.of(common), one.lock.of(common))
        if wrong := filter_disallowed(changes, across):
            raise LocksDifferError(wrong)
        found |= {change.field: change for change in changes}
    return [found[name] for name in sorted(found)]


def compare_suites(
    one: EvaluationResult, other: EvaluationResult, collect_metric: str = ACCEPTED
) -> dict[str, PairedDifference]:
    """Return how `one` stands to `other`, suite by suite, on what both were judged on."""
    common = [suite for suite in one.by_problem if suite in other.by_problem]
    return {
        suite: compute_paired_difference(
            one.figure(suite, collect_metric), other.figure(suite, collect_metric), comparisons=len(common)
        )
        for suite in common
    }


def format_table(results: Sequence[EvaluationResult]) -> str:
    """Return the comparison of all, percent with two decimals and intervals, N/A for what was not measured (P188)."""
    judged = {suite: None for one in results for suite in one.scores}
    columns = [*(pair for pair in SELECTION_RULE if pair[0] in judged), *((suite, ACCEPTED) for suite in judged)]
    columns = list(dict.fromkeys(columns))
    head = ["Step", *(f"{suite} {_SHORT[name]}" for suite, name in columns)]
    rows = [[str(one.step), *(_cell(one, suite, name) for suite, name in columns)] for one in results]
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(" | ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


_SHORT = {ACCEPTED: "accepted@1", RUNS: "exec"}


def _cell(one: EvaluationResult, suite: str, name: str) -> str:
    row = one.scores.get(suite, {})
    if row.get(name) is None:
        return "N/A"
    low, high = row.get(f"{name}_interval", (row[name], row[name]))
    return f"{row[name]:.2%} ({low:.1%}-{high:.1%})"
