"""Choose the best of several checkpoints, and compare it with the baseline.

First the share of programs that run; those not clearly below the highest (P189: "difference not large") are decided by
the share that is right, and those not clearly below there by the earlier step, which cost less. "Clearly" is a paired
interval without 0, shared out over all comparisons of the choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean
from typing import Any

from rlbox.evaluation.result import (
    ACCEPTED,
    SELECTION_RULE,
    EvaluationResult,
    compare_suites,
    format_table,
    require_comparable,
)
from rlbox.evaluation.scores import (
    CONFIDENCE,
    POWER,
    PairedDifference,
    ValuesByProblem,
    compute_paired_difference,
    smallest_detectable_difference,
)
from rlbox.evaluation.view import difference_to_json, format_points
from rlbox.i18n import _


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What one checkpoint scored by problem, figure by figure in the order of the rule."""

    name: str
    step: int
    figures: Sequence[ValuesByProblem]


@dataclass(frozen=True, kw_only=True)
class SelectionStep:
    """One figure of the rule: who led it, how the others compare with the leader, and who was left.

    `smallest` is the difference that a checkpoint must be worse by to be left out with a chance of 95 %.
    """

    leader: str
    against: Mapping[str, PairedDifference]
    left: tuple[str, ...]
    smallest: float


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The best checkpoint, and how the choice went."""

    best: str
    rungs: tuple[SelectionStep, ...]


def select_best(checkpoints: Sequence[Candidate], *, level: float = CONFIDENCE) -> Selection:
    """Return the best of checkpoints that were judged on the same problems; `ValueError` without any.

    A figure that has no problem in common decides nothing.
    """
    if not checkpoints:
        raise ValueError(_("no checkpoint was judged"))
    left = list(checkpoints)
    comparisons = max(1, len(left) - 1) * max(1, min(len(one.figures) for one in left))
    rungs: list[SelectionStep] = []
    for number in range(min(len(one.figures) for one in checkpoints)):
        if len(left) == 1:
            break
        rung = _rung(left, number, level, comparisons)
        rungs.append(rung)
        left = [one for one in left if one.name in rung.left]
    return Selection(best=min(left, key=lambda one: one.step).name, rungs=tuple(rungs))


def _student(level: float, freedom: int) -> float:
    """Return Student's quantile, near enough; source: Abramowitz and Stegun, Handbook, 26.7.5."""
    z = NormalDist().inv_cdf(level)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def _rung(left: Sequence[Candidate], number: int, level: float, comparisons: int) -> SelectionStep:
    leader = max(left, key=lambda one: (_mean(one.figures[number]), -one.step))
    against = {
        one.name: compute_paired_difference(
            one.figures[number], leader.figures[number], level=level, comparisons=comparisons
        )
        for one in left
        if one is not leader
    }
    return SelectionStep(
        leader=leader.name,
        against=against,
        left=tuple(one.name for one in left if one is leader or against[one.name].undecided),
        smallest=max(
            smallest_detectable_difference(pair, level=level, comparisons=comparisons) for pair in against.values()
        ),
    )


def _mean(figure: ValuesByProblem) -> float:
    return fmean(fmean(values) for values in figure.values())


@dataclass(frozen=True, kw_only=True)
class Regression:
    """How a model stands against the baseline on what must not drop.

    `verdict` is `worse` (clearly), `kept` (a loss of `margin` or more would have been seen) or `unsure`: too few
    problems to tell. `smallest` is the loss that is called worse with a chance of 95 %.
    """

    pair: PairedDifference
    margin: float
    smallest: float
    verdict: str


def check_regression(
    model: ValuesByProblem,
    baseline: ValuesByProblem,
    *,
    margin: float = 0.0,
    level: float = CONFIDENCE,
    power: float = POWER,
) -> Regression:
    """Return two one-sided tests: is it worse, and is it no worse by `margin` (0: the smallest that shows).

    Of a dozen problems that differ the normal distribution makes a little too much: Student's is wider.
    """
    pair = compute_paired_difference(model, baseline, level=level)
    reach = _student(level, len(pair.won) + len(pair.lost) + 2) * pair.error
    smallest = smallest_detectable_difference(pair, level=level, power=power, sides=1)
    asked = margin or smallest
    verdict = "worse" if pair.middle < -reach else "kept" if pair.middle - reach > -asked else "unsure"
    return Regression(pair=pair, margin=asked, smallest=smallest, verdict=verdict)


GUARD_SUITE = "humaneval"
"""The suite that must not drop (P189)."""
_MARKS = {"worse": "FAIL", "kept": "OK", "unsure": "WARN"}


@dataclass(frozen=True, kw_only=True)
class BestResult:
    """How a choice went; `against` and `regression` are of the baseline, and empty without one."""

    results: Sequence[EvaluationResult]
    best: EvaluationResult
    choice: Selection
    guard: str
    held: bool = False
    against: Mapping[str, PairedDifference] = field(default_factory=dict)
    regression: Regression | None = None

    @property
    def worse(self) -> bool:
        return self.regression is not None and self.regression.verdict == "worse"


def build_rule(suites: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the seed's rule on other suites: of each, the share that runs before the share that is right."""
    return tuple((suite, name) for suite in suites for __, name in SELECTION_RULE) or SELECTION_RULE


def choose_checkpoint(
    results: Sequence[EvaluationResult],
    *,
    baseline: EvaluationResult | None = None,
    guard: str = GUARD_SUITE,
    margin: float = 0.0,
    rule: Sequence[tuple[str, str]] = SELECTION_RULE,
) -> BestResult:
    """Return the best of results of checkpoints, held against the baseline where there is one.

    Raises
    ------
    ValueError
        There is none, or none of the figures of the rule was judged of all.
    NotComparable
        Their locks differ.
    """
    found = [one for one in results if one.step >= 0]
    if not found:
        raise ValueError(_("no checkpoint was judged"))
    require_comparable(found)
    field_of = make_candidates(found, rule)
    if not field_of[0].figures:
        raise ValueError(
            _("no suite that decides was judged of all checkpoints: {rule} (P189)").format(rule=", ".join(dict(rule)))
        )
    choice = select_best(field_of)
    best = next(one for one in found if one.name == choice.best)
    if baseline is None:
        return BestResult(results=found, best=best, choice=choice, guard=guard)
    require_comparable([baseline, best])
    one, other = best.figure(guard, ACCEPTED), baseline.figure(guard, ACCEPTED)
    regression = check_regression(one, other, margin=margin) if one and other else None
    against = compare_suites(best, baseline)
    return BestResult(
        results=found, best=best, choice=choice, guard=guard, held=True, against=against, regression=regression
    )


def make_candidates(
    results: Sequence[EvaluationResult], rule: Sequence[tuple[str, str]] = SELECTION_RULE
) -> list[Candidate]:
    """Return what the choice needs of results; a figure that one of them lacks is left out for all."""
    known = [(suite, name) for suite, name in rule if all(one.figure(suite, name) for one in results)]
    return [
        Candidate(name=one.name, step=one.step, figures=[one.figure(suite, name) for suite, name in known])
        for one in results
    ]


def best_to_json(best: BestResult) -> dict[str, Any]:
    """Return it as it is written to `best_checkpoint.json` (P189, P191)."""
    told: dict[str, Any] = {
        "step": best.best.step,
        "name": best.best.name,
        "lock": best.best.lock.digest,
        "scores": {name: dict(row) for name, row in best.best.scores.items()},
        "rungs": [
            {
                "leader": rung.leader,
                "left": list(rung.left),
                "smallest": rung.smallest,
                "against": {name: difference_to_json(pair, rung.smallest) for name, pair in rung.against.items()},
            }
            for rung in best.choice.rungs
        ],
    }
    if not best.held:
        return told
    told["against"] = {
        suite: difference_to_json(pair, smallest_detectable_difference(pair, comparisons=len(best.against)))
        for suite, pair in best.against.items()
    }
    told["comparison"] = {"verdict": "unknown"}
    if known := best.regression:
        told["comparison"] = {
            "verdict": known.verdict,
            "difference": known.pair.difference,
            "smallest": known.smallest,
            "margin": known.margin,
        }
    return told | {"regression": best.worse}


def format_best(best: BestResult) -> Iterator[str]:
    """Yield the table, how the choice went, and how the best stands to the baseline."""
    yield from map(str, format_table(best.results).splitlines())
    for rung in best.choice.rungs:
        for name, pair in rung.against.items():
            by, low, high = format_points(pair)
            yield f"{name} to {rung.leader}: {by} points ({low} to {high})"
        yield f"one that is {rung.smallest:.1%} worse is left out with a chance of 95 %; left: {', '.join(rung.left)}"
    for suite, pair in best.against.items():
        by, low, high = format_points(pair)
        yield f"{suite} accepted@1 to the baseline: {by} points ({low} to {high})"
    if not best.held:
        yield "[WARN] no baseline was given: regression was not looked for"
    elif best.regression is None:
        yield f"[WARN] {best.guard} was not judged of both: regression was not looked for"
    else:
        known = best.regression
        mark, by = _MARKS[known.verdict], format_points(known.pair)[0]
        yield f"[{mark}] {best.guard} accepted@1: {by} points, {known.verdict}"
        yield f"a loss of {known.smallest:.1%} is seen with a chance of 95 %"
    yield f"best checkpoint: step {best.best.step}, {best.best.name}"
