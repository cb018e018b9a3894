"""Results and comparisons as text and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlbox.amounts import columns
from rlbox.evaluation.lock import LockDifference
from rlbox.evaluation.result import ACCEPTED, RUNS, EvaluationResult, compare_suites, require_comparable
from rlbox.evaluation.scores import PairedDifference, smallest_detectable_difference
from rlbox.i18n import _
from rlbox.terminal import remove_controls

_SUITE_COLUMNS = ("suite", "problems", "accepted@1", "exec", "outcomes")
_SHOWN = 12
"""Problems that are named in a line, at most."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two results: the fields that were allowed to differ, and the suites that both were judged on."""

    one: EvaluationResult
    other: EvaluationResult
    across: Sequence[LockDifference]
    suites: Mapping[str, PairedDifference]

    def smallest(self, suite: str) -> float:
        """Return the true difference that this suite shows with a chance of 95 %, beside the others."""
        return smallest_detectable_difference(self.suites[suite], comparisons=len(self.suites))


def compare_results(one: EvaluationResult, other: EvaluationResult, across: Sequence[str] = ()) -> Comparison:
    """Return how `one` stands to `other`; `NotComparable` where their locks differ in what `across` does not allow.

    `ValueError` where they have no suite in common.
    """
    allowed = require_comparable([one, other], across)
    suites = compare_suites(one, other)
    if not suites:
        raise ValueError(_("{one} and {other} were judged on no common suite").format(one=one.name, other=other.name))
    return Comparison(one=one, other=other, across=allowed, suites=suites)


def comparison_to_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "one": describe_result(comparison.one),
        "other": describe_result(comparison.other),
        "across": [{"field": one.field, "one": one.one, "other": one.other} for one in comparison.across],
        "suites": {
            suite: difference_to_json(pair, comparison.smallest(suite)) for suite, pair in comparison.suites.items()
        },
    }


def format_comparison(comparison: Comparison) -> Iterator[str]:
    """Yield what may differ, then a line for each suite and what it could show."""
    yield from (f"across {one.field}: {one.one!r} and {one.other!r}" for one in comparison.across)
    for suite, pair in comparison.suites.items():
        by, low, high = format_points(pair)
        counts = len(pair.won), len(pair.lost), pair.problems
        yield f"{suite}: {by} points ({low} to {high}), {counts[0]} won, {counts[1]} lost of {counts[2]}"
        verdict = "not told apart" if pair.undecided else "higher" if pair.difference > 0 else "lower"
        yield f"  {verdict}; a difference of {comparison.smallest(suite):.1%} shows with a chance of 95 %"
        if pair.won:
            yield f"  won: {_names(pair.won)}"
        if pair.lost:
            yield f"  lost: {_names(pair.lost)}"


def describe_result(result: EvaluationResult) -> dict[str, Any]:
    """Return which result it is: name, step, digest of its lock, weights."""
    weights = str(result.lock.subject.get("weights", ""))
    return {"name": result.name, "step": result.step, "lock": result.lock.digest, "weights": weights}


def format_result(result: EvaluationResult, *, unsolved: bool) -> Iterator[str]:
    """Yield one result: what was judged, with which lock, each suite with its interval; `unsolved` names problems."""
    step = f", step {result.step}" if result.step >= 0 else ""
    yield f"{result.name}{step}"
    facts = describe_result(result)
    rows = [_suite_row(suite, row) for suite, row in result.scores.items()]
    yield from columns([("  lock:", facts["lock"]), ("  weights:", facts["weights"])])
    yield from (f"  {line}" for line in columns([_SUITE_COLUMNS, *rows]))
    for suite in result.scores if unsolved else ():
        missed = [name for name, values in result.figure(suite, ACCEPTED).items() if not any(values)]
        if missed:
            yield f"  {suite}, not solved: {', '.join(missed)}"


def difference_to_json(pair: PairedDifference, smallest: float) -> dict[str, Any]:
    """Return a paired difference as JSON types, with the smallest true one that shows with a chance of 95 %."""
    return {
        "difference": pair.difference,
        "interval": [pair.low, pair.high],
        "undecided": pair.undecided,
        "smallest": smallest,
        "problems": pair.problems,
        "won": list(pair.won),
        "lost": list(pair.lost),
    }


def format_points(pair: PairedDifference) -> tuple[str, str, str]:
    """Return a difference and the ends of its interval in percentage points."""
    by, low, high = (f"{100 * share:+.1f}" for share in (pair.difference, pair.low, pair.high))
    return by, low, high


def _suite_row(suite: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    told = ", ".join(f"{count} {outcome}" for outcome, count in row.get("outcomes", {}).items())
    return (suite, str(row.get("problems", "")), _share(row, ACCEPTED), _share(row, RUNS), told)


def _share(row: Mapping[str, Any], name: str) -> str:
    if row.get(name) is None:
        return "-"
    low, high = row.get(f"{name}_interval", (row[name], row[name]))
    return f"{row[name]:.2%} ({low:.1%}-{high:.1%})"


def _names(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest


def print_line(line: str) -> None:
    """Write a line to standard output, at once."""
    sys.stdout.write(f"{remove_controls(line)}\n")
    sys.stdout.flush()
