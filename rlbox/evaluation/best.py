"""The best of several results, and how it stands to the baseline: what is found, as JSON types and as lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlbox.evaluation.choice import BestChoice, Regression, choose, look_for_regression
from rlbox.evaluation.paired import Paired, smallest_difference
from rlbox.evaluation.result import RULE, EvaluationResult, compare, contenders, require_comparable, table
from rlbox.evaluation.results import ACCEPTED
from rlbox.evaluation.view import paired_json, points
from rlbox.i18n import _

GUARD = "humaneval"
"""The suite that must not drop (P189)."""
_MARKS = {"worse": "FAIL", "kept": "OK", "unsure": "WARN"}


@dataclass(frozen=True, kw_only=True)
class Best:
    """How a choice went; `against` and `regression` are of the baseline, and empty without one."""

    results: Sequence[EvaluationResult]
    best: EvaluationResult
    choice: BestChoice
    guard: str
    held: bool = False
    against: Mapping[str, Paired] = field(default_factory=dict)
    regression: Regression | None = None

    @property
    def worse(self) -> bool:
        """Whether the best has clearly lost what the baseline could."""
        return self.regression is not None and self.regression.verdict == "worse"


def rule_of(suites: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the seed's rule on other suites: of each, the share that runs before the share that is right."""
    return tuple((suite, name) for suite in suites for __, name in RULE) or RULE


def find_best(
    results: Sequence[EvaluationResult],
    *,
    baseline: EvaluationResult | None = None,
    guard: str = GUARD,
    margin: float = 0.0,
    rule: Sequence[tuple[str, str]] = RULE,
) -> Best:
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
    field_of = contenders(found, rule)
    if not field_of[0].figures:
        raise ValueError(
            _("no suite that decides was judged of all checkpoints: {rule} (P189)").format(rule=", ".join(dict(rule)))
        )
    choice = choose(field_of)
    best = next(one for one in found if one.name == choice.best)
    if baseline is None:
        return Best(results=found, best=best, choice=choice, guard=guard)
    require_comparable([baseline, best])
    one, other = best.figure(guard, ACCEPTED), baseline.figure(guard, ACCEPTED)
    regression = look_for_regression(one, other, margin=margin) if one and other else None
    against = compare(best, baseline)
    return Best(results=found, best=best, choice=choice, guard=guard, held=True, against=against, regression=regression)


def best_json(found: Best) -> dict[str, Any]:
    """Return it as it is written to `best_checkpoint.json` (P189, P191)."""
    told: dict[str, Any] = {
        "step": found.best.step,
        "name": found.best.name,
        "lock": found.best.lock.digest,
        "scores": {name: dict(row) for name, row in found.best.scores.items()},
        "rungs": [
            {
                "leader": rung.leader,
                "left": list(rung.left),
                "smallest": rung.smallest,
                "against": {name: paired_json(pair, rung.smallest) for name, pair in rung.against.items()},
            }
            for rung in found.choice.rungs
        ],
    }
    if not found.held:
        return told
    told["against"] = {
        suite: paired_json(pair, smallest_difference(pair, comparisons=len(found.against)))
        for suite, pair in found.against.items()
    }
    told["comparison"] = {"verdict": "unknown"}
    if known := found.regression:
        told["comparison"] = {
            "verdict": known.verdict,
            "difference": known.pair.difference,
            "smallest": known.smallest,
            "margin": known.margin,
        }
    return told | {"regression": found.worse}


def best_lines(found: Best) -> Iterator[str]:
    """Yield the table, how the choice went, and how the best stands to the baseline."""
    yield from map(str, table(found.results).splitlines())
    for rung in found.choice.rungs:
        for name, pair in rung.against.items():
            by, low, high = points(pair)
            yield f"{name} to {rung.leader}: {by} points ({low} to {high})"
        yield f"one that is {rung.smallest:.1%} worse is left out with a chance of 95 %; left: {', '.join(rung.left)}"
    for suite, pair in found.against.items():
        by, low, high = points(pair)
        yield f"{suite} accepted@1 to the baseline: {by} points ({low} to {high})"
    if not found.held:
        yield "[WARN] no baseline was given: regression was not looked for"
    elif found.regression is None:
        yield f"[WARN] {found.guard} was not judged of both: regression was not looked for"
    else:
        known = found.regression
        mark, by = _MARKS[known.verdict], points(known.pair)[0]
        yield f"[{mark}] {found.guard} accepted@1: {by} points, {known.verdict}"
        yield f"a loss of {known.smallest:.1%} is seen with a chance of 95 %"
    yield f"best checkpoint: step {found.best.step}, {found.best.name}"
