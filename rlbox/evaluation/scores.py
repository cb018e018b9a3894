"""Scores of a model and paired differences of two, with confidence intervals over problems.

The problems are the sample. The answers to one of them are not independent of each other: n answers to a problem are
one mean. Intervals are of the adjusted kind, which hold near 0 and 1 and with few problems: two problems that were
solved and two that were not are added; for a pair, a problem won and a problem lost, so that two models that never
differ are not called equal for certain. Sources: Agresti and Coull, The American Statistician 52 (1998), 119-126;
Bonett and Price, Journal of Educational and Behavioral Statistics 37 (2012), 479-488.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from rlbox.i18n import _

ValuesByProblem = Mapping[str, Sequence[float]]
"""Problem id to one value (0 to 1) for each answer to it."""
CONFIDENCE = 0.95
_POWER = 0.95
_ADDED = (0.0, 0.0, 1.0, 1.0)
_ADDED_DIFFERENCES = (1.0, -1.0)


@dataclass(frozen=True, kw_only=True)
class Score:
    """A share (0 to 1) with its confidence interval."""

    value: float
    low: float
    high: float
    problems: int


def compute_score_with_interval(values: ValuesByProblem) -> Score:
    """Return the mean over problems of the mean over each one's answers (avg@n); `ValueError` without any."""
    means = [fmean(answers) for answers in values.values() if answers]
    if not means:
        raise ValueError(_("no problem was judged"))
    value, adjusted = fmean(means), [*means, *_ADDED]
    center, margin = fmean(adjusted), _quantile(CONFIDENCE) * _standard_error(adjusted)
    low, high = max(0.0, center - margin), min(1.0, center + margin)
    return Score(value=value, low=min(low, value), high=max(high, value), problems=len(means))


def _quantile(confidence: float) -> float:
    """Return the standard errors on either side of a mean: 1.96 at 0.95."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def _standard_error(values: Sequence[float]) -> float:
    mean = fmean(values)
    return math.sqrt(fmean([(value - mean) ** 2 for value in values]) / len(values))


def estimate_pass_at_k(k: int, correct: int, answers: int) -> float:
    """Return the unbiased estimate of the chance that one of `k` answers is correct.

    Source: Chen et al., arXiv 2107.03374, section 2.1. `ValueError` where fewer than `k` answers were asked for.
    """
    if not 0 < k <= answers or not 0 <= correct <= answers:
        raise ValueError(
            _("pass@{k} of {right} right among {answers} answers").format(k=k, right=correct, answers=answers)
        )
    if answers - correct < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / number for number in range(answers - correct + 1, answers + 1))


@dataclass(frozen=True, kw_only=True)
class ScoreDifference:
    """How much higher a model scores than a reference, in shares of 1, over the problems that both have.

    `won` and `lost` are the problems on which it scores higher and lower. `center` is the adjusted difference, which
    the interval lies about. `is_paired`: False where only means and their standard errors were known.
    """

    difference: float
    low: float
    high: float
    center: float
    standard_error: float
    problems: int
    won: tuple[str, ...]
    lost: tuple[str, ...]
    is_paired: bool = True

    @property
    def is_significant(self) -> bool:
        return not self.low <= 0.0 <= self.high


def compute_paired_difference_of_common_problems(
    values: ValuesByProblem, reference: ValuesByProblem, *, comparisons: int = 1
) -> ScoreDifference:
    """Return the paired difference; `comparisons` made at once share the room for error (Bonferroni).

    `ValueError` where no problem is common to both.
    """
    common = [problem for problem in values if values[problem] and reference.get(problem)]
    if not common:
        raise ValueError(_("the two were judged on no common problem"))
    gains = {problem: fmean(values[problem]) - fmean(reference[problem]) for problem in common}
    adjusted = [*gains.values(), *_ADDED_DIFFERENCES]
    center, standard_error = fmean(adjusted), _standard_error(adjusted)
    margin = _quantile(1 - (1 - CONFIDENCE) / comparisons) * standard_error
    difference = fmean(gains.values())
    return ScoreDifference(
        difference=difference,
        low=min(difference, max(-1.0, center - margin)),
        high=max(difference, min(1.0, center + margin)),
        center=center,
        standard_error=standard_error,
        problems=len(common),
        won=tuple(problem for problem, gain in gains.items() if gain > 0),
        lost=tuple(problem for problem, gain in gains.items() if gain < 0),
    )


def compute_difference_of_means(score: Score, reference: Score, *, comparisons: int = 1) -> ScoreDifference:
    """Return the difference where problems cannot be paired: its interval is wider than that of pairs."""
    difference = score.value - reference.value
    margins = (max(one.high - one.value, one.value - one.low) for one in (score, reference))  # one end may be cut
    standard_error = math.hypot(*margins) / _quantile(CONFIDENCE)
    margin = _quantile(1 - (1 - CONFIDENCE) / comparisons) * standard_error
    return ScoreDifference(
        difference=difference,
        low=max(-1.0, difference - margin),
        high=min(1.0, difference + margin),
        center=difference,
        standard_error=standard_error,
        problems=min(score.problems, reference.problems),
        won=(),
        lost=(),
        is_paired=False,
    )


def compute_detectable_difference(pair: ScoreDifference, *, comparisons: int = 1, sides: int = 2) -> float:
    """Return the smallest true difference that a comparison like this one shows with a chance of 95 %, in shares of 1.

    Both errors are shared out over `comparisons` that are made at once. A difference turns problems over that were
    equal before, which makes its own error larger: that is counted.
    """
    normal, size = NormalDist(), pair.problems + len(_ADDED_DIFFERENCES)
    alpha, beta = (1 - CONFIDENCE) / comparisons, (1 - _POWER) / comparisons
    z = normal.inv_cdf(1 - alpha / sides) + normal.inv_cdf(1 - beta)
    if not pair.is_paired:
        return min(1.0, z * pair.standard_error)
    z_squared = z**2 / size
    variance = pair.standard_error**2 * size
    return min(1.0, (z_squared + math.sqrt(z_squared**2 + 4 * z_squared * variance)) / 2)  # d = z * sqrt((var + d) / n)
