"""Choose the best of several checkpoints, and compare it with the baseline.

First the share of programs that run; those not clearly below the highest ("difference not large") are decided by
the share that is right, and those not clearly below there by the earlier step, which cost less. "Clearly" is a paired
interval without 0, shared out over all comparisons of the choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

from rlbox.evaluation.comparison import (
    compare_accepted_by_suite,
    compute_metric_difference,
    format_difference_with_interval,
    format_scores_by_checkpoint,
    paired_difference_to_json,
    require_only_allowed_lock_differences,
)
from rlbox.evaluation.result import ACCEPTED, SELECTION_RULE, EvaluationResult
from rlbox.evaluation.scores import (
    CONFIDENCE,
    ScoreDifference,
    compute_detectable_difference,
)
from rlbox.i18n import _, translate

GUARD_SUITE = "humaneval"
"""The suite that must not drop."""
RegressionVerdict = Literal["worse", "kept", "unsure"]
"""Clearly worse; a loss of `RegressionCheck.detectable` would have been seen; too few problems to tell."""
_MARKS = {"worse": "FAIL", "kept": "OK", "unsure": "WARN"}
_VERDICT_WORDS = {"worse": _("worse"), "kept": _("kept"), "unsure": _("unsure")}
SuiteMetricPriority = Sequence[tuple[str, str]]
"""Suites and metrics that decide, in order."""


@dataclass(frozen=True, kw_only=True)
class EliminationRound:
    """One metric of the rule: who led, how the others differ from the leader, and who remained.

    `detectable` is the difference that a checkpoint must be worse by to be eliminated with a chance of 95 %.
    """

    leader: str
    differences: Mapping[str, ScoreDifference]
    remaining: tuple[str, ...]
    detectable: float


class Selection(NamedTuple):
    """The name of the best checkpoint, and how the choice went."""

    best: str
    eliminations: tuple[EliminationRound, ...]


def select_earliest_not_significantly_worse(
    results: Sequence[EvaluationResult], rule: SuiteMetricPriority = SELECTION_RULE
) -> Selection:
    """Return the best of results that have every metric of the rule; `ValueError` without any."""
    if not results:
        raise ValueError(_("no checkpoint was judged"))
    remaining, eliminations = list(results), list[EliminationRound]()
    comparisons = max(1, len(results) - 1) * max(1, len(rule))
    for suite, metric in rule:
        if len(remaining) == 1:
            break
        eliminations.append(_eliminate(remaining, suite, metric, comparisons))
        remaining = [result for result in remaining if result.name in eliminations[-1].remaining]
    return Selection(min(remaining, key=lambda result: result.step).name, tuple(eliminations))


def _eliminate(results: Sequence[EvaluationResult], suite: str, metric: str, comparisons: int) -> EliminationRound:
    def rank(result: EvaluationResult) -> tuple[float, int]:
        score = result.compute_score_or_get_reported_or_none(suite, metric)
        return score.value if score else 0.0, -result.step

    leader = max(results, key=rank)
    differences = {
        result.name: compute_metric_difference(result, leader, suite, metric, comparisons=comparisons)
        for result in results
        if result is not leader
    }
    return EliminationRound(
        leader=leader.name,
        differences=differences,
        remaining=tuple(
            result.name for result in results if result is leader or not differences[result.name].is_significant
        ),
        detectable=max(compute_detectable_difference(pair, comparisons=comparisons) for pair in differences.values()),
    )


class RegressionCheck(NamedTuple):
    """How a model stands against the baseline on the guard suite.

    `detectable` is the loss that is called worse with a chance of 95 %.
    """

    pair: ScoreDifference
    detectable: float
    verdict: RegressionVerdict


def classify_regression(pair: ScoreDifference) -> RegressionCheck:
    """Return two one-sided tests: is it worse, and is it no worse by the smallest difference that shows.

    Of a dozen problems that differ the normal distribution makes a little too much: Student's is wider.
    """
    freedom = len(pair.won) + len(pair.lost) + 2 if pair.is_paired else pair.problems
    reach = _student_quantile(CONFIDENCE, freedom) * pair.standard_error
    detectable = compute_detectable_difference(pair, sides=1)
    if pair.center < -reach:
        return RegressionCheck(pair, detectable, "worse")
    return RegressionCheck(pair, detectable, "kept" if pair.center - reach > -detectable else "unsure")


def _student_quantile(confidence: float, freedom: int) -> float:
    """Return Student's quantile, near enough; source: Abramowitz and Stegun, Handbook, 26.7.5."""
    z = NormalDist().inv_cdf(confidence)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


@dataclass(frozen=True, kw_only=True)
class ChosenCheckpoint:
    """The best result, how it was chosen, and how it stands against the baseline where there is one.

    `regression` is None without a baseline, or where the guard suite was not judged of both.
    """

    result: EvaluationResult
    candidates: Sequence[EvaluationResult]
    eliminations: Sequence[EliminationRound]
    guard_suite: str
    baseline: EvaluationResult | None
    differences_by_suite: Mapping[str, ScoreDifference]
    regression: RegressionCheck | None

    @property
    def has_regressed_on_guard(self) -> bool:
        return self.regression is not None and self.regression.verdict == "worse"


def build_selection_rule_or_default(suites: Sequence[str]) -> SuiteMetricPriority:
    """Return the usual rule on other suites: of each, the share that runs before the share that is right."""
    return tuple((suite, metric) for suite in suites for __, metric in SELECTION_RULE) or SELECTION_RULE


def choose_best_and_compare(
    results: Sequence[EvaluationResult],
    *,
    baseline: EvaluationResult | None = None,
    guard_suite: str = GUARD_SUITE,
    rule: SuiteMetricPriority = SELECTION_RULE,
) -> ChosenCheckpoint:
    """Return the best of the results of checkpoints; what of the rule was not judged of all is left out.

    Raises
    ------
    ValueError
        There is no checkpoint, or nothing of the rule was judged of all.
    LocksDifferError
        Their locks differ.
    """
    checkpoints = [result for result in results if result.step >= 0]
    if not checkpoints:
        raise ValueError(_("no checkpoint was judged"))
    require_only_allowed_lock_differences(checkpoints)
    judged = [row for row in rule if all(result.compute_score_or_get_reported_or_none(*row) for result in checkpoints)]
    if not judged:
        raise ValueError(
            _("no suite that decides was judged of all checkpoints: {rule}").format(rule=", ".join(dict(rule)))
        )
    name, eliminations = select_earliest_not_significantly_worse(checkpoints, judged)
    best = next(result for result in checkpoints if result.name == name)
    differences: dict[str, ScoreDifference] = {}
    regression = None
    if baseline is not None:
        require_only_allowed_lock_differences([baseline, best])
        differences = compare_accepted_by_suite(best, baseline)
        if all(result.compute_score_or_get_reported_or_none(guard_suite, ACCEPTED) for result in (best, baseline)):
            regression = classify_regression(compute_metric_difference(best, baseline, guard_suite, ACCEPTED))
    return ChosenCheckpoint(
        result=best,
        candidates=checkpoints,
        eliminations=eliminations,
        guard_suite=guard_suite,
        baseline=baseline,
        differences_by_suite=differences,
        regression=regression,
    )


def choice_to_json(choice: ChosenCheckpoint) -> dict[str, Any]:
    best = choice.result
    document: dict[str, Any] = {
        "step": best.step,
        "name": best.name,
        "lock": best.lock.digest_without_weights,
        "scores": {suite: dict(scores) for suite, scores in best.scores.items()},
        "rungs": [
            {
                "leader": elimination.leader,
                "left": list(elimination.remaining),
                "smallest": elimination.detectable,
                "against": {
                    name: paired_difference_to_json(pair, elimination.detectable)
                    for name, pair in elimination.differences.items()
                },
            }
            for elimination in choice.eliminations
        ],
    }
    if choice.baseline is None:
        return document
    document["against"] = {
        suite: paired_difference_to_json(
            pair, compute_detectable_difference(pair, comparisons=len(choice.differences_by_suite))
        )
        for suite, pair in choice.differences_by_suite.items()
    }
    document["comparison"] = {"verdict": "unknown"}
    if regression := choice.regression:
        document["comparison"] = {
            "verdict": regression.verdict,
            "difference": regression.pair.difference,
            "smallest": regression.detectable,
            "margin": regression.detectable,
        }
    return document | {"regression": choice.has_regressed_on_guard}


def format_choice(choice: ChosenCheckpoint) -> Iterator[str]:
    """Yield the table, how the choice went, and how the best stands against the baseline."""
    yield from format_scores_by_checkpoint(choice.candidates).splitlines()
    for elimination in choice.eliminations:
        for name, pair in elimination.differences.items():
            difference = format_difference_with_interval(pair)
            text = _("{name} to {leader}: {difference}")
            yield translate(text.format(name=name, leader=elimination.leader, difference=difference))
        text = _("one that is {detectable:.1%} worse is left out with a chance of 95 %; left: {names}")
        yield translate(text.format(detectable=elimination.detectable, names=", ".join(elimination.remaining)))
    for suite, pair in choice.differences_by_suite.items():
        text = _("{suite} accepted@1 to the baseline: {difference}")
        yield translate(text.format(suite=suite, difference=format_difference_with_interval(pair)))
    if choice.baseline is None:
        yield translate(_("[WARN] no baseline was given: regression was not looked for"))
    elif choice.regression is None:
        text = _("[WARN] {suite} was not judged of both: regression was not looked for")
        yield translate(text.format(suite=choice.guard_suite))
    else:
        regression = choice.regression
        text = _("[{mark}] {suite} accepted@1: {difference:+.1f} points, {verdict}").format(
            mark=_MARKS[regression.verdict],
            suite=choice.guard_suite,
            difference=100 * regression.pair.difference,
            verdict=_VERDICT_WORDS[regression.verdict],
        )
        yield translate(text)
        text = _("a loss of {detectable:.1%} is seen with a chance of 95 %")
        yield translate(text.format(detectable=regression.detectable))
    text = _("best checkpoint: step {step}, {name}")
    yield translate(text.format(step=choice.result.step, name=choice.result.name))
