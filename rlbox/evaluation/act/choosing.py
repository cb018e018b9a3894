"""Choose the best of the results below a folder, and compare two: what is read, said and written."""

from __future__ import annotations

import argparse
from typing import Any

from rlbox.evaluation.act.outputs import BEST, read_results, read_summary, write_json
from rlbox.evaluation.act.say import say
from rlbox.evaluation.choice import choose, look_for_regression
from rlbox.evaluation.paired import Paired
from rlbox.evaluation.result import EvaluationResult, compare, contenders, require_comparable, table
from rlbox.evaluation.results import ACCEPTED


def choose_best(asked: argparse.Namespace) -> int:
    """Say which checkpoint is best and how it stands to the baseline; `ValueError` where there is no result."""
    results = [one for one in read_results(asked.out) if one.step >= 0]
    if not results:
        raise ValueError(f"{asked.out} holds no result")
    require_comparable(results)
    choice = choose(contenders(results))
    best = next(one for one in results if one.name == choice.best)
    say(table(results))
    for rung in choice.rungs:
        for name, pair in rung.against.items():
            say(f"{name} to {rung.leader}: {_span(pair)}")
        say(f"one that is {rung.smallest:.1%} worse is left out with a chance of 95 %; left: {', '.join(rung.left)}")
    document: dict[str, Any] = {"step": best.step, "name": best.name, "lock": best.lock.digest}
    document |= {"scores": {name: dict(row) for name, row in best.scores.items()}}
    if asked.baseline is None:
        say("[WARN] no baseline was given: regression was not looked for")
    else:
        document["comparison"] = _against(best, read_summary(asked.baseline), asked.guard, asked.margin)
        document["regression"] = document["comparison"].get("verdict") == "worse"
    write_json(asked.out / BEST, document)
    say(f"best checkpoint: step {best.step}, {best.name}")
    return 0


def _against(best: EvaluationResult, baseline: EvaluationResult, guard: str, margin: float) -> dict[str, Any]:
    """Return how the best stands to the baseline, and say it."""
    require_comparable([baseline, best])
    for suite, pair in compare(best, baseline).items():
        say(f"{suite} accepted@1 to the baseline: {_span(pair)}")
    if not best.figure(guard, ACCEPTED) or not baseline.figure(guard, ACCEPTED):
        say(f"[WARN] {guard} was not judged of both: regression was not looked for")
        return {"verdict": "unknown"}
    found = look_for_regression(best.figure(guard, ACCEPTED), baseline.figure(guard, ACCEPTED), margin=margin)
    mark = {"worse": "FAIL", "kept": "OK", "unsure": "WARN"}[found.verdict]
    told = f"a loss of {found.smallest:.1%} is seen with a chance of 95 %"
    say(f"[{mark}] {guard} accepted@1: {_points(found.pair.difference)}, {found.verdict}; {told}")
    return {
        "verdict": found.verdict,
        "difference": found.pair.difference,
        "smallest": found.smallest,
        "margin": found.margin,
    }


def compare_two(asked: argparse.Namespace) -> int:
    """Say how two results differ; `NotComparable` where their locks do."""
    one, other = map(read_summary, asked.results)
    for change in require_comparable([one, other], asked.across):
        say(f"across {change.field}: {change.one!r} and {change.other!r}")
    for suite, pair in compare(one, other).items():
        say(f"{suite}: {_span(pair)}, {len(pair.won)} won, {len(pair.lost)} lost of {pair.problems}")
    return 0


def _span(pair: Paired) -> str:
    return f"{_points(pair.difference)} ({_points(pair.low)} to {_points(pair.high)})"


def _points(share: float) -> str:
    return f"{100 * share:+.1f} points"
