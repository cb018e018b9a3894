"""Which checkpoint is best, and whether it has lost what the baseline could: the seed's rule, with its uncertainty.

First the share of programs that run; those not clearly below the highest (P189: "difference not large") are decided by
the share that is right, and those not clearly below there by the earlier step, which cost less. "Clearly" is a paired
interval without 0, shared out over all comparisons of the choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from rlbox.evaluation.paired import POWER, ByProblem, Paired, compare_pairs, smallest_difference
from rlbox.evaluation.scores import LEVEL
from rlbox.i18n import _


@dataclass(frozen=True, kw_only=True)
class Contender:
    """What one checkpoint scored by problem, figure by figure in the order of the rule."""

    name: str
    step: int
    figures: Sequence[ByProblem]


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One figure of the rule: who led it, how the others compare with the leader, and who was left.

    `smallest` is the difference that a checkpoint must be worse by to be left out with a chance of 95 %.
    """

    leader: str
    against: Mapping[str, Paired]
    left: tuple[str, ...]
    smallest: float


@dataclass(frozen=True, kw_only=True)
class BestChoice:
    """The best checkpoint, and how the choice went."""

    best: str
    rungs: tuple[Rung, ...]


def choose(checkpoints: Sequence[Contender], *, level: float = LEVEL) -> BestChoice:
    """Return the best of checkpoints that were judged on the same problems; `ValueError` without any.

    A figure that has no problem in common decides nothing.
    """
    if not checkpoints:
        raise ValueError(_("no checkpoint was judged"))
    left = list(checkpoints)
    comparisons = max(1, len(left) - 1) * max(1, min(len(one.figures) for one in left))
    rungs: list[Rung] = []
    for number in range(min(len(one.figures) for one in checkpoints)):
        if len(left) == 1:
            break
        rung = _rung(left, number, level, comparisons)
        rungs.append(rung)
        left = [one for one in left if one.name in rung.left]
    return BestChoice(best=min(left, key=lambda one: one.step).name, rungs=tuple(rungs))


def _student(level: float, freedom: int) -> float:
    """Return Student's quantile, near enough; source: Abramowitz and Stegun, Handbook, 26.7.5."""
    z = NormalDist().inv_cdf(level)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def _rung(left: Sequence[Contender], number: int, level: float, comparisons: int) -> Rung:
    leader = max(left, key=lambda one: (_mean(one.figures[number]), -one.step))
    against = {
        one.name: compare_pairs(one.figures[number], leader.figures[number], level=level, comparisons=comparisons)
        for one in left
        if one is not leader
    }
    return Rung(
        leader=leader.name,
        against=against,
        left=tuple(one.name for one in left if one is leader or against[one.name].undecided),
        smallest=max(smallest_difference(pair, level=level, comparisons=comparisons) for pair in against.values()),
    )


def _mean(figure: ByProblem) -> float:
    return fmean(fmean(values) for values in figure.values())


@dataclass(frozen=True, kw_only=True)
class Regression:
    """How a model stands against the baseline on what must not drop.

    `verdict` is `worse` (clearly), `kept` (a loss of `margin` or more would have been seen) or `unsure`: too few
    problems to tell. `smallest` is the loss that is called worse with a chance of 95 %.
    """

    pair: Paired
    margin: float
    smallest: float
    verdict: str


def look_for_regression(
    model: ByProblem, baseline: ByProblem, *, margin: float = 0.0, level: float = LEVEL, power: float = POWER
) -> Regression:
    """Return two one-sided tests: is it worse, and is it no worse by `margin` (0: the smallest that shows).

    Of a dozen problems that differ the normal distribution makes a little too much: Student's is wider.
    """
    pair = compare_pairs(model, baseline, level=level)
    reach = _student(level, len(pair.won) + len(pair.lost) + 2) * pair.error
    smallest = smallest_difference(pair, level=level, power=power, sides=1)
    asked = margin or smallest
    verdict = "worse" if pair.middle < -reach else "kept" if pair.middle - reach > -asked else "unsure"
    return Regression(pair=pair, margin=asked, smallest=smallest, verdict=verdict)
