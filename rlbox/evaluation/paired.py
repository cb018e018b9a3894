"""Two models on the same problems: the difference, how sure it is, and the smallest that this suite can show.

Only problems that both were judged on count, each as the difference of its two means. The interval is the adjusted one
for paired shares: a problem won and a problem lost are added, so that two models that never differ are not called
equal for certain. Source: Bonett and Price, Journal of Educational and Behavioral Statistics 37 (2012), 479-488.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from rlbox.evaluation.scores import LEVEL, quantile, standard_error
from rlbox.i18n import _

ByProblem = Mapping[str, Sequence[float]]
POWER = 0.95
_ADDED = (1.0, -1.0)


@dataclass(frozen=True, kw_only=True)
class Paired:
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


def compare_pairs(one: ByProblem, other: ByProblem, *, level: float = LEVEL, comparisons: int = 1) -> Paired:
    """Return the paired difference; `comparisons` made at once share the level's room for error (Bonferroni).

    `ValueError` where no problem is common to both.
    """
    common = [name for name in one if one[name] and other.get(name)]
    if not common:
        raise ValueError(_("the two were judged on no common problem"))
    gains = {name: fmean(one[name]) - fmean(other[name]) for name in common}
    adjusted = [*gains.values(), *_ADDED]
    middle, error = fmean(adjusted), standard_error(adjusted)
    reach = quantile(1 - (1 - level) / comparisons) * error
    difference = fmean(gains.values())
    return Paired(
        difference=difference,
        low=min(difference, max(-1.0, middle - reach)),
        high=max(difference, min(1.0, middle + reach)),
        middle=middle,
        error=error,
        problems=len(common),
        won=tuple(name for name, gain in gains.items() if gain > 0),
        lost=tuple(name for name, gain in gains.items() if gain < 0),
    )


def smallest_difference(
    pair: Paired, *, level: float = LEVEL, power: float = POWER, comparisons: int = 1, sides: int = 2
) -> float:
    """Return the smallest true difference that a comparison like this one shows with this power, in shares of 1.

    Both errors are shared out over `comparisons` that are made at once. A difference turns problems over that were
    equal before, which makes its own error larger: that is counted.
    """
    normal = NormalDist()
    alpha, beta = (1 - level) / comparisons, (1 - power) / comparisons
    reach = (normal.inv_cdf(1 - alpha / sides) + normal.inv_cdf(1 - beta)) ** 2 / (pair.problems + len(_ADDED))
    varied = pair.error**2 * (pair.problems + len(_ADDED))
    return min(1.0, (reach + math.sqrt(reach**2 + 4 * reach * varied)) / 2)  # d = z * sqrt((varied + d) / n)
