"""Means over problems, and the intervals about them."""

import math
import random

import pytest

from rlbox.evaluation.scores import compute_score_with_interval, estimate_pass_at_k


def test_answers_to_one_problem_are_one_mean() -> None:
    found = compute_score_with_interval({"a": [1.0, 1.0, 1.0, 1.0], "b": [0.0]})
    assert found.value == 0.5
    assert found.problems == 2


def test_nothing_judged_has_no_score() -> None:
    with pytest.raises(ValueError, match="no problem"):
        compute_score_with_interval({"a": []})


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.95, 1.0])
def test_the_interval_holds_the_truth_as_often_as_it_says(share: float) -> None:
    rng, held, rounds = random.Random(7), 0, 600
    for _ in range(rounds):
        found = compute_score_with_interval({str(number): [float(rng.random() < share)] for number in range(117)})
        held += found.low <= share <= found.high
    assert held / rounds >= 0.94


def test_more_answers_to_a_problem_are_no_more_problems() -> None:
    once = compute_score_with_interval({str(number): [float(number % 2)] for number in range(40)})
    often = compute_score_with_interval({str(number): [float(number % 2)] * 8 for number in range(40)})
    assert once == often


@pytest.mark.parametrize(("k", "right", "answers"), [(1, 3, 10), (5, 3, 10), (10, 1, 10), (3, 8, 10), (1, 0, 4)])
def test_pass_at_k_counts_all_choices(k: int, right: int, answers: int) -> None:
    none = math.comb(answers - right, k) / math.comb(answers, k)
    assert estimate_pass_at_k(k, right, answers) == pytest.approx(1 - none)


@pytest.mark.parametrize(("k", "right", "answers"), [(0, 0, 1), (2, 0, 1), (1, 2, 1), (1, -1, 1)])
def test_pass_at_k_of_too_few_answers(k: int, right: int, answers: int) -> None:
    with pytest.raises(ValueError, match="pass@"):
        estimate_pass_at_k(k, right, answers)
