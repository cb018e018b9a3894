"""The best checkpoint and the regression, on simulated trainings whose truth is known."""

from __future__ import annotations

import os
import random

import pytest

from rlbox.evaluation.lock import EvaluationLock
from rlbox.evaluation.result import ACCEPTED, EXECUTED, EvaluationResult
from rlbox.evaluation.scores import ValuesByProblem, compute_paired_difference_of_common_problems
from rlbox.evaluation.selection import classify_regression, select_earliest_not_significantly_worse

TRAININGS = int(os.environ.get("RLBOX_EVAL_TRAININGS", "1000"))
PROBLEMS = 117
RUNS = 0.44
"""Share of problems whose program runs, of a model that has lost nothing."""


def candidate(step: int, executed: ValuesByProblem, accepted: ValuesByProblem) -> EvaluationResult:
    lock = EvaluationLock(parts={}, subject={})
    values = {"codecontests_valid": {EXECUTED: executed, ACCEPTED: accepted}}
    return EvaluationResult(name=str(step), step=step, lock=lock, scores={}, values=values)


def answers(rng: random.Random, hard: list[float], loss: float, flips: float) -> ValuesByProblem:
    """Return what a model solves that is as good as `hard` says, less `loss` of all problems; `flips` of them anew."""
    found = {}
    for number, chance in enumerate(hard):
        solved = rng.random() < (rng.random() if rng.random() < flips else chance)
        found[str(number)] = [float(solved and rng.random() >= loss)]
    return found


def hardness(rng: random.Random) -> list[float]:
    return [float(rng.random() < RUNS) if rng.random() < 0.7 else rng.random() for _ in range(PROBLEMS)]


def training(rng: random.Random) -> tuple[list[EvaluationResult], list[float]]:
    """Return the checkpoints of a training, and what each has truly lost of all that it could solve."""
    hard, flips = hardness(rng), rng.uniform(0.05, 0.4)
    losses = [rng.uniform(0.0, 0.9) for _ in range(rng.randint(2, 8))]
    losses[rng.randrange(len(losses))] = 0.0
    judged = []
    for step, loss in enumerate(losses):
        runs = answers(rng, hard, loss, flips)
        right = {name: [value[0] * (rng.random() < 0.6)] for name, value in runs.items()}
        judged.append(candidate(step, runs, right))
    return judged, losses


def test_a_checkpoint_that_is_worse_than_what_shows_is_not_chosen() -> None:
    rng, wrong = random.Random(20), 0
    for _ in range(TRAININGS):
        judged, losses = training(rng)
        choice = select_earliest_not_significantly_worse(judged)
        truth = losses[int(choice.best)] * RUNS
        wrong += truth > max(step.detectable for step in choice.eliminations)
    assert wrong / TRAININGS <= 0.05


def test_the_earlier_of_equals_is_chosen() -> None:
    same = {str(number): [float(number % 2)] for number in range(50)}
    judged = [candidate(step, same, same) for step in (300, 100, 200)]
    choice = select_earliest_not_significantly_worse(judged)
    assert choice.best == "100"
    assert [len(step.remaining) for step in choice.eliminations] == [3, 3]


def test_a_clear_leader_is_chosen_whatever_the_second_figure_says() -> None:
    runs = {str(number): [1.0] for number in range(100)}
    none = {str(number): [0.0] for number in range(100)}
    judged = [candidate(1, none, runs), candidate(2, runs, none)]
    assert select_earliest_not_significantly_worse(judged).best == "2"


def test_what_is_alike_in_what_runs_is_decided_by_what_is_right() -> None:
    runs = {str(number): [1.0] for number in range(100)}
    none = {str(number): [0.0] for number in range(100)}
    judged = [candidate(1, runs, none), candidate(2, runs, runs)]
    assert select_earliest_not_significantly_worse(judged).best == "2"


def test_one_checkpoint_is_its_own_choice() -> None:
    assert select_earliest_not_significantly_worse([candidate(5, {}, {})]).best == "5"
    with pytest.raises(ValueError, match="no checkpoint"):
        select_earliest_not_significantly_worse([])


@pytest.mark.parametrize("flips", [0.05, 0.3])
def test_regressions_are_flagged_and_equals_are_not(flips: float) -> None:
    rng, false, missed = random.Random(21), 0, 0
    for _ in range(TRAININGS):
        hard = hardness(rng)
        baseline, equal = answers(rng, hard, 0.0, flips), answers(rng, hard, 0.0, flips)
        found = classify_regression(compute_paired_difference_of_common_problems(equal, baseline))
        false += found.verdict == "worse"
        planted = answers(rng, hard, min(1.0, found.detectable / RUNS), flips)
        planted_pair = compute_paired_difference_of_common_problems(planted, baseline)
        missed += classify_regression(planted_pair).verdict != "worse"
    assert false / TRAININGS <= 0.05
    assert missed / TRAININGS <= 0.05


def test_two_that_never_differ_are_not_equal_for_certain() -> None:
    same = {str(number): [1.0] for number in range(20)}
    pair = compute_paired_difference_of_common_problems(same, same)
    assert pair.low < 0 < pair.high
    assert not pair.won
    assert not pair.lost


def test_problems_won_and_lost_are_named() -> None:
    pair = compute_paired_difference_of_common_problems(
        {"a": [1.0], "b": [0.0], "c": [1.0], "x": [1.0]}, {"a": [0.0], "b": [1.0], "c": [1.0]}
    )
    assert (pair.won, pair.lost, pair.problems) == (("a",), ("b",), 3)
    with pytest.raises(ValueError, match="no common problem"):
        compute_paired_difference_of_common_problems({"a": [1.0]}, {"b": [1.0]})
