"""What a suite says of one model: means over problems, with intervals that know how many problems there were.

The problems are the sample, the answers to one of them are not independent of each other: n answers to a problem are
one mean. Intervals are of the adjusted kind, which hold near 0 and 1 and with few problems: two problems that were
solved and two that were not are added. Source: Agresti and Coull, The American Statistician 52 (1998), 119-126.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from rlbox.i18n import _

LEVEL = 0.95
_ADDED = (0.0, 0.0, 1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Score:
    """A share of 0 to 1 with its interval, over `problems`."""

    value: float
    low: float
    high: float
    problems: int


def quantile(level: float) -> float:
    """Return how many standard errors lie on either side of a mean at this level, for example 1.96 at 0.95."""
    return NormalDist().inv_cdf(0.5 + level / 2)


def score(by_problem: Mapping[str, Sequence[float]], level: float = LEVEL) -> Score:
    """Return the mean over problems of the mean over each one's answers (avg@n); `ValueError` without any."""
    means = [fmean(values) for values in by_problem.values() if values]
    if not means:
        raise ValueError(_("no problem was judged"))
    value, adjusted = fmean(means), [*means, *_ADDED]
    middle, error = fmean(adjusted), standard_error(adjusted)
    reach = quantile(level) * error
    low, high = max(0.0, middle - reach), min(1.0, middle + reach)
    return Score(value=value, low=min(low, value), high=max(high, value), problems=len(means))


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of values that vary about it."""
    middle = fmean(values)
    return math.sqrt(fmean([(value - middle) ** 2 for value in values]) / len(values))


def pass_at(k: int, right: int, answers: int) -> float:
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


def grouped(rows: Sequence[tuple[str, float]]) -> dict[str, list[float]]:
    """Return the values of each problem, in the order in which they came."""
    found: dict[str, list[float]] = defaultdict(list)
    for problem, value in rows:
        found[problem].append(value)
    return dict(found)
