"""Compare results that have one lock, and format results and comparisons as text and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlbox.amounts import align_translated, count_columns
from rlbox.evaluation.lock import LockDifference, LocksDifferError, diff_locks, exclude_allowed_differences
from rlbox.evaluation.result import ACCEPTED, EXECUTED, SELECTION_RULE, EvaluationResult
from rlbox.evaluation.scores import (
    ScoreDifference,
    compute_detectable_difference,
    compute_difference_of_means,
    compute_paired_difference_of_common_problems,
)
from rlbox.i18n import _, translate

_SUITE_COLUMNS = (_("suite"), _("problems"), "accepted@1", "exec", _("outcomes"))
OUTCOME_WORDS = {
    "accepted": _("accepted"),
    "wrong": _("wrong"),
    "failed": _("failed"),
    "timeout": _("timeout"),
    "no-code": _("no-code"),
    "sandbox": _("sandbox"),
}
"""What the outcomes of answers are called in a text."""
_SHORT_NAMES = {ACCEPTED: "accepted@1", EXECUTED: "exec"}
_MAX_NAMES = 12
"""Problems that are named in a line, at most."""


@dataclass(frozen=True, kw_only=True)
class ResultComparison:
    """A result against a reference: allowed differences of their locks, and the suites that both have."""

    result: EvaluationResult
    reference: EvaluationResult
    lock_differences: Sequence[LockDifference]
    suites: Mapping[str, ScoreDifference]

    def get_detectable_difference(self, suite: str) -> float:
        """Return the true difference (share of 1) that this suite shows with a chance of 95 %, beside the others."""
        return compute_detectable_difference(self.suites[suite], comparisons=len(self.suites))


def require_only_allowed_lock_differences(
    results: Sequence[EvaluationResult], allowed_fields: Sequence[str] = ()
) -> list[LockDifference]:
    """Return the fields in which locks differ, which `allowed_fields` covers; raise `LocksDifferError` for others.

    Suites that one of two was not judged on are no difference: what both were judged on is compared.
    """
    differences: dict[str, LockDifference] = {}
    for result in results[1:]:
        common = set(results[0].values) & set(result.values)
        changes = diff_locks(results[0].lock.filter_suites(common), result.lock.filter_suites(common))
        if refused := exclude_allowed_differences(changes, allowed_fields):
            raise LocksDifferError(refused)
        differences |= {change.field: change for change in changes}
    return [differences[field] for field in sorted(differences)]


def compare_accepted_by_suite(result: EvaluationResult, reference: EvaluationResult) -> dict[str, ScoreDifference]:
    common = [suite for suite in result.values if suite in reference.values]
    return {
        suite: compute_metric_difference(result, reference, suite, ACCEPTED, comparisons=len(common))
        for suite in common
    }


def compute_metric_difference(
    result: EvaluationResult, reference: EvaluationResult, suite: str, metric: str, *, comparisons: int = 1
) -> ScoreDifference:
    """Pair the problems of two results, or compare the means where one has no values per problem."""
    values = [one.get_metric_values_or_empty(suite, metric) for one in (result, reference)]
    if all(values):
        return compute_paired_difference_of_common_problems(*values, comparisons=comparisons)
    score, other = (one.compute_score_or_get_reported_or_none(suite, metric) for one in (result, reference))
    if score is None or other is None:
        name = reference.name if score else result.name
        raise ValueError(_("{name} has no interval for {suite}: log its samples").format(name=name, suite=suite))
    return compute_difference_of_means(score, other, comparisons=comparisons)


def compare_results(
    result: EvaluationResult, reference: EvaluationResult, allowed_fields: Sequence[str] = ()
) -> ResultComparison:
    """Compare two results; fields of the lock that `allowed_fields` covers may differ.

    Raises
    ------
    LocksDifferError
        Other fields differ.
    ValueError
        They have no suite in common.
    """
    differences = require_only_allowed_lock_differences([result, reference], allowed_fields)
    suites = compare_accepted_by_suite(result, reference)
    if not suites:
        raise ValueError(
            _("{one} and {other} were judged on no common suite").format(one=result.name, other=reference.name)
        )
    return ResultComparison(result=result, reference=reference, lock_differences=differences, suites=suites)


def comparison_to_json(comparison: ResultComparison) -> dict[str, Any]:
    return {
        "one": comparison.result.get_name_step_digests(),
        "other": comparison.reference.get_name_step_digests(),
        "across": [
            {"field": change.field, "one": change.first, "other": change.second}
            for change in comparison.lock_differences
        ],
        "suites": {
            suite: paired_difference_to_json(pair, comparison.get_detectable_difference(suite))
            for suite, pair in comparison.suites.items()
        },
    }


def paired_difference_to_json(pair: ScoreDifference, detectable: float) -> dict[str, Any]:
    return {
        "difference": pair.difference,
        "interval": [pair.low, pair.high],
        "undecided": not pair.is_significant,
        "paired": pair.is_paired,
        "smallest": detectable,
        "problems": pair.problems,
        "won": list(pair.won),
        "lost": list(pair.lost),
    }


def format_comparison(comparison: ResultComparison) -> Iterator[str]:
    yield from (translate(_("across {change}").format(change=str(change))) for change in comparison.lock_differences)
    for suite, pair in comparison.suites.items():
        difference = format_difference_with_interval(pair)
        text = _("{suite}: {difference}, {won} won, {lost} lost of {problems}")
        if not pair.is_paired:
            text = _("{suite}: {difference}, difference of means over {problems} problems, which are not paired")
        counts = {"won": len(pair.won), "lost": len(pair.lost), "problems": pair.problems}
        yield translate(text.format(suite=suite, difference=difference, **counts))
        verdict = _("higher") if pair.difference > 0 else _("lower")
        text = _("  {verdict}; a difference of {detectable:.1%} shows with a chance of 95 %").format(
            verdict=verdict if pair.is_significant else _("not told apart"),
            detectable=comparison.get_detectable_difference(suite),
        )
        yield translate(text)
        for text, names in ((_("  won: {names}"), pair.won), (_("  lost: {names}"), pair.lost)):
            if names:
                shown: str = ", ".join(names[:_MAX_NAMES])
                if more := len(names[_MAX_NAMES:]):
                    shown = _("{names} and {count} more").format(names=shown, count=more)
                yield translate(text.format(names=shown))


def format_difference_with_interval(pair: ScoreDifference) -> str:
    """Return a difference with its interval, in percentage points: `+2.1 points (-3.8 to +8.0)`."""
    return _("{difference:+.1f} points ({low:+.1f} to {high:+.1f})").format(
        difference=100 * pair.difference, low=100 * pair.low, high=100 * pair.high
    )


def format_result(result: EvaluationResult, *, list_unsolved: bool) -> Iterator[str]:
    step = _("{name}, step {step}").format(name=result.name, step=result.step)
    yield translate(step) if result.step >= 0 else result.name
    facts = result.get_name_step_digests()
    yield from align_translated([(_("  lock:"), facts["lock"]), (_("  weights:"), facts["weights"])])
    rows = [
        (
            suite,
            str(scores.get("problems", "")),
            _format_metric(scores, ACCEPTED, "-"),
            _format_metric(scores, EXECUTED, "-"),
            ", ".join(
                f"{count} {translate(OUTCOME_WORDS.get(outcome, outcome))}"
                for outcome, count in scores.get("outcomes", {}).items()
            ),
        )
        for suite, scores in result.scores.items()
    ]
    yield from (f"  {line}" for line in align_translated([_SUITE_COLUMNS, *rows]))
    for suite in result.scores if list_unsolved else ():
        unsolved = [
            name for name, values in result.get_metric_values_or_empty(suite, ACCEPTED).items() if not any(values)
        ]
        if unsolved:
            yield translate(_("  {suite}, not solved: {problems}").format(suite=suite, problems=", ".join(unsolved)))


def format_scores_by_checkpoint(results: Sequence[EvaluationResult]) -> str:
    suites = dict.fromkeys(suite for result in results for suite in result.scores)
    rule = [(suite, metric) for suite, metric in SELECTION_RULE if suite in suites]
    metrics = list(dict.fromkeys([*rule, *((suite, ACCEPTED) for suite in suites)]))
    head = [translate(_("Step")), *(f"{suite} {_SHORT_NAMES[metric]}" for suite, metric in metrics)]
    rows = [
        [str(result.step), *(_format_metric(result.scores.get(suite, {}), metric, "N/A") for suite, metric in metrics)]
        for result in results
    ]
    widths = [max(map(count_columns, column)) for column in zip(head, *rows, strict=True)]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        " | ".join(" " * (width - count_columns(cell)) + cell for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def _format_metric(scores: Mapping[str, Any], metric: str, missing: str) -> str:
    if scores.get(metric) is None:
        return missing
    low, high = scores.get(f"{metric}_interval", (scores[metric], scores[metric]))
    return f"{scores[metric]:.2%} ({low:.1%}-{high:.1%})"
