"""Scores of a model and paired differences of two, with confidence intervals over problems.

The problems are the sample. The answers to one of them are not independent of each other: n answers to a problem are
one mean. Intervals are of the adjusted kind, which hold near 0 and 1 and with few problems: two problems that were
solved and two that were not are added; for a pair, a problem won and a problem lost, so that two models that never
differ are not called equal for certain. Sources: Agresti and Coull, The American Statistician 52 (1998), 119-126;
Bonett and Price, Journal of Educational and Behavioral Statistics 37 (2012), 479-488.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from rlbox.i18n import _

CONFIDENCE = 0.95
_ADDED = (0.0, 0.0, 1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Score:
    """A share of 0 to 1 with its interval, over `problems`."""

    value: float
    low: float
    high: float
    problems: int


def normal_quantile(level: float) -> float:
    """Return how many standard errors lie on either side of a mean at this level, for example 1.96 at 0.95."""
    return NormalDist().inv_cdf(0.5 + level / 2)


def compute_score(by_problem: Mapping[str, Sequence[float]], level: float = CONFIDENCE) -> Score:
    """Return the mean over problems of the mean over each one's answers (avg@n); `ValueError` without any."""
    means = [fmean(values) for values in by_problem.values() if values]
    if not means:
        raise ValueError(_("no problem was judged"))
    value, adjusted = fmean(means), [*means, *_ADDED]
    middle, error = fmean(adjusted), standard_error(adjusted)
    reach = normal_quantile(level) * error
    low, high = max(0.0, middle - reach), min(1.0, middle + reach)
    return Score(value=value, low=min(low, value), high=max(high, value), problems=len(means))


def standard_error(values: Sequence[float]) -> float:
    middle = fmean(values)
    return math.sqrt(fmean([(value - middle) ** 2 for value in values]) / len(values))


def estimate_pass_at_k(k: int, right: int, answers: int) -> float:
    """Return the chance that one of `k` answers is right, of `answers` of which `right` were: the unbiased estimate.

    Source: Chen et al., arXiv 2107.03374, section 2.1. `ValueError` where fewer than `k` answers were asked for.
    """
    if not 0 < k <= answers or not 0 <= right <= answers:
        raise ValueError(
            _("pass@{k} of {right} right among {answers} answers").format(k=k, right=right, answers=answers)
        )
    if answers - right < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / number for number in range(answers - right + 1, answers + 1))


def group_by_problem(rows: Sequence[tuple[str, float]]) -> dict[str, list[float]]:
    """Return the values of each problem, in the order in which they came."""
    found: dict[str, list[float]] = defaultdict(list)
    for problem, value in rows:
        found[problem].append(value)
    return dict(found)


ValuesByProblem = Mapping[str, Sequence[float]]
POWER = 0.95
_ADDED_PAIRS = (1.0, -1.0)


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """How much higher `one` scores than `other`, in shares of 1, over `problems` that both were judged on.

    `won` and `lost` are the problems that `one` solved better and worse. `middle` is the adjusted difference, which the
    interval lies about, `error` its standard error.
    """

    difference: float
    low: float
    high: float
    middle: float
    error: float
    problems: int
    won: tuple[str, ...]
    lost: tuple[str, ...]

    @property
    def undecided(self) -> bool:
        """Whether the difference is not large: its interval holds 0."""
        return self.low <= 0.0 <= self.high


def compute_paired_difference(
    one: ValuesByProblem, other: ValuesByProblem, *, level: float = CONFIDENCE, comparisons: int = 1
) -> PairedDifference:
    """Return the paired difference; `comparisons` made at once share the level's room for error (Bonferroni).

    `ValueError` where no problem is common to both.
    """
    common = [name for name in one if one[name] and other.get(name)]
    if not common:
        raise ValueError(_("the two were judged on no common problem"))
    gains = {name: fmean(one[name]) - fmean(other[name]) for name in common}
    adjusted = [*gains.values(), *_ADDED_PAIRS]
    middle, error = fmean(adjusted), standard_error(adjusted)
    reach = normal_quantile(1 - (1 - level) / comparisons) * error
    difference = fmean(gains.values())
    return PairedDifference(
        difference=difference,
        low=min(difference, max(-1.0, middle - reach)),
        high=max(difference, min(1.0, middle + reach)),
        middle=middle,
        error=error,
        problems=len(common),
        won=tuple(name for name, gain in gains.items() if gain > 0),
        lost=tuple(name for name, gain in gains.items() if gain < 0),
    )


def smallest_detectable_difference(
    pair: PairedDifference, *, level: float = CONFIDENCE, power: float = POWER, comparisons: int = 1, sides: int = 2
) -> float:
    """Return the smallest true difference that a comparison like this one shows with this power, in shares of 1.

    Both errors are shared out over `comparisons` that are made at once. A difference turns problems over that were
    equal before, which makes its own error larger: that is counted.
    """
    normal = NormalDist()
    alpha, beta = (1 - level) / comparisons, (1 - power) / comparisons
    reach = (normal.inv_cdf(1 - alpha / sides) + normal.inv_cdf(1 - beta)) ** 2 / (pair.problems + len(_ADDED_PAIRS))
    varied = pair.error**2 * (pair.problems + len(_ADDED_PAIRS))
    return min(1.0, (reach + math.sqrt(reach**2 + 4 * reach * varied)) / 2)  # d = z * sqrt((varied + d) / n)
