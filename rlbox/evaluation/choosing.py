"""Choose the best of the results below a folder, and compare two: what is read, said and written."""

from __future__ import annotations

import argparse

from rlbox.evaluation.best import best_json, best_lines, find_best, rule_of
from rlbox.evaluation.outputs import export_of, read_results, read_summary, write_json
from rlbox.evaluation.say import say
from rlbox.evaluation.view import compare_results, comparison_lines
from rlbox.evaluation.winner import BEST


def choose_best(asked: argparse.Namespace) -> int:
    """Say which checkpoint is best and how it stands to the baseline; `ValueError` where there is no result."""
    baseline = read_summary(asked.baseline) if asked.baseline else None
    rule = rule_of(asked.by)
    found = find_best(read_results(asked.out), baseline=baseline, guard=asked.guard, margin=asked.margin, rule=rule)
    for line in best_lines(found):
        say(line)
    write_json(asked.out / BEST, best_json(found) | {"model": export_of(asked.out / found.best.name)})
    return 0


def compare_two(asked: argparse.Namespace) -> int:
    """Say how two results differ; `NotComparable` where their locks do."""
    one, other = map(read_summary, asked.results)
    for line in comparison_lines(compare_results(one, other, asked.across)):
        say(line)
    return 0
