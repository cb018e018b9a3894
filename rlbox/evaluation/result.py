"""The result of one checkpoint: scores by suite, values by problem, the lock that they were made with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlbox.evaluation.lock import EvaluationLock, parse_lock
from rlbox.evaluation.scores import Score, ValuesByProblem, compute_score_with_interval, estimate_pass_at_k
from rlbox.i18n import _

AnswerRecord = dict[str, Any]
"""One answer: `problem`, `number`, `outcome`, `runs`, `passed`, `executed`, `finish`, `tokens`, `text`."""
RecordsBySuite = dict[str, list[AnswerRecord]]
"""The answers of each suite, in the order of its problems."""
ACCEPTED, EXECUTED = "accepted_at_1", "exec_success_rate"
"""Metrics: every run of an answer was right; every run ended by itself with exit status 0."""
SELECTION_RULE = (("codecontests_valid", EXECUTED), ("codecontests_valid", ACCEPTED))
"""Suites and metrics that decide which checkpoint is best, in order."""


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """`scores` has the figures of each suite; `values` maps a suite and a metric to each problem's values."""

    name: str
    step: int
    lock: EvaluationLock
    scores: Mapping[str, Mapping[str, Any]]
    values: Mapping[str, Mapping[str, ValuesByProblem]]

    def get_metric_values_or_empty(self, suite: str, metric: str) -> ValuesByProblem:
        return self.values.get(suite, {}).get(metric, {})

    def compute_score_or_get_reported_or_none(self, suite: str, metric: str) -> Score | None:
        """Return the score; where no values of problems are known, the one that another harness reported."""
        if values := self.get_metric_values_or_empty(suite, metric):
            return compute_score_with_interval(values)
        scores = self.scores.get(suite, {})
        low, high = scores.get(f"{metric}_interval", (None, None))
        return None if low is None else Score(value=scores[metric], low=low, high=high, problems=scores["problems"])

    def get_name_step_digests(self) -> dict[str, Any]:
        weights = str(self.lock.subject.get("weights", ""))
        return {"name": self.name, "step": self.step, "lock": self.lock.digest_without_weights, "weights": weights}

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "name": self.name,
            "step": self.step,
            "lock": self.lock.as_json(),
            "scores": {suite: dict(scores) for suite, scores in self.scores.items()},
            "by_problem": {
                suite: {metric: dict(values) for metric, values in metrics.items()}
                for suite, metrics in self.values.items()
            },
        }


def parse_result(document: Any) -> EvaluationResult:
    """Return the result of a JSON document; `ValueError` where it is none."""
    if not isinstance(document, dict) or document.get("schema") != 1:
        raise ValueError(_("this is not an evaluation result"))
    try:
        return EvaluationResult(
            name=str(document["name"]),
            step=int(document["step"]),
            lock=parse_lock(document["lock"]),
            scores={str(suite): dict(scores) for suite, scores in document["scores"].items()},
            values={
                str(suite): {str(metric): _parse_values(values) for metric, values in metrics.items()}
                for suite, metrics in document["by_problem"].items()
            },
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(_("this is not an evaluation result: {error!r}").format(error=error)) from error


def _parse_values(values: Mapping[str, Any]) -> dict[str, list[float]]:
    return {str(problem): [float(value) for value in answers] for problem, answers in values.items()}


def build_result(name: str, step: int, lock: EvaluationLock, records: RecordsBySuite) -> EvaluationResult:
    return EvaluationResult(
        name=name,
        step=step,
        lock=lock,
        scores={suite: _score_suite(rows) for suite, rows in records.items()},
        values={
            suite: {metric: _collect_metric_values(rows, metric) for metric in (ACCEPTED, EXECUTED)}
            for suite, rows in records.items()
        },
    )


def _score_suite(records: Sequence[AnswerRecord]) -> dict[str, Any]:
    """Return the figures of one suite; the metrics are means over its problems, with their intervals.

    With several answers to a problem, `pass_at` has pass@k for the powers of two.
    """
    accepted = _collect_metric_values(records, ACCEPTED)
    scores: dict[str, Any] = {"problems": len(accepted), "answers": len(records)}
    for metric in (ACCEPTED, EXECUTED):
        score = compute_score_with_interval(_collect_metric_values(records, metric))
        scores |= {metric: score.value, f"{metric}_interval": [score.low, score.high]}
    samples = min(map(len, accepted.values()))
    powers = [2**power for power in range(1, samples.bit_length()) if 2**power <= samples]
    if powers:
        scores["pass_at"] = {
            str(k): sum(estimate_pass_at_k(k, int(sum(row)), len(row)) for row in accepted.values()) / len(accepted)
            for k in powers
        }
    count = len(records)
    return scores | {
        "pass_ratio": sum(record["passed"] / max(1, record["runs"]) for record in records) / count,
        "truncated": sum(record["finish"] == "length" for record in records) / count,
        "mean_tokens": sum(record["tokens"] for record in records) / count,
        "outcomes": dict(sorted(Counter(str(record["outcome"]) for record in records).items())),
    }


def _collect_metric_values(records: Sequence[AnswerRecord], metric: str) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for record in records:
        value = record["outcome"] == "accepted" if metric == ACCEPTED else bool(record["executed"])
        values.setdefault(str(record["problem"]), []).append(float(value))
    return values
