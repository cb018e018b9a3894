"""Answers that are compared and not run: mathematics, by math-verify itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playbox import Player, export, judge_argv, playing, write_rows

from rlbox.cli.root import run_root
from rlbox.evaluation.sandbox_client import SandboxClient, grade_reference_solutions, run_sandbox_and_yield_url
from rlbox.evaluation.suites import ProblemDirectories, RunLimits, SuiteProblems, load_suites_with_problems
from rlbox.system.http import NoFullResponseError, create_loopback_client

ROWS = [
    {"unique_id": "half", "problem": "Half as a fraction?", "answer": "\\frac{1}{2}"},
    {"unique_id": "roots", "problem": "Roots of x^2 = 4?", "answer": "\\{-2, 2\\}"},
    {"id": "gsm", "question": "3 and 4?", "answer": "Adding gives seven.\n#### 7"},
]
SUITE = 'title = "sums"\nfile = "sums.jsonl"\njudge = "math"\n'


@pytest.fixture
def mathematics(tmp_path: Path) -> Path:
    write_rows(tmp_path / "problems/sums.jsonl", ROWS)
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites/sums.toml").write_text(SUITE)
    return tmp_path


def load(site: Path, suite: str) -> SuiteProblems:
    (loaded,) = load_suites_with_problems([suite], ProblemDirectories(site / "problems"), site / "suites")
    return loaded


def test_rows_of_math_and_gsm8k_are_read(mathematics: Path) -> None:
    problems = load(mathematics, "sums").problems
    assert [(one.id, one.expected, one.scorer) for one in problems] == [
        ("half", "\\frac{1}{2}", "math"),
        ("roots", "\\{-2, 2\\}", "math"),
        ("gsm", "7", "math"),
    ]
    assert "\\boxed{}" in problems[0].message
    assert problems[0].message.endswith("Half as a fraction?")
    assert problems[2].solution_as_model_answer_or_empty == "\\boxed{7}"


def test_a_package_that_is_missing_is_an_error_and_no_score(mathematics: Path, sandbox_url: str) -> None:
    suite, problems = load(mathematics, "sums")
    sandbox = SandboxClient(sandbox_url, create_loopback_client(600))
    with pytest.raises(NoFullResponseError, match="math does not work there: No module named 'math_verify'"):
        sandbox.fetch_scorer_versions("math")
    verdict = sandbox.grade_until_first_failure(problems[0], "\\boxed{0.5}", suite.limits)
    assert (verdict.outcome, verdict.detail) == ("sandbox", "No module named 'math_verify'")
    with pytest.raises(NoFullResponseError):
        grade_reference_solutions(suite, problems, sandbox)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter that has the packages, which are downloaded."""
    venv = tmp_path_factory.mktemp("packages") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    subprocess.run([str(venv / "bin/pip"), "install", "-q", "math-verify[antlr4-13-2]==0.9.0"], check=True)
    return str(venv / "bin/python")


@pytest.fixture(scope="module")
def comparing(python: str) -> Iterator[SandboxClient]:
    with run_sandbox_and_yield_url(python, 30, 1024) as url:
        yield SandboxClient(url, create_loopback_client(3600))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("wanted", "answer", "outcome"),
    [
        ("half", "So it is \\boxed{0.5}.", "accepted"),
        ("half", "So it is \\boxed{\\frac{2}{4}}.", "accepted"),
        ("half", "The answer is $\\frac13$.", "wrong"),
        ("half", "I do not know.", "wrong"),
        ("half", "", "wrong"),
        ("half", "\\boxed{" + "{" * 500, "wrong"),
        ("roots", "They are \\boxed{\\{2, -2\\}}", "accepted"),
        ("roots", "\\boxed{2}", "wrong"),
        ("gsm", "7 apples: \\boxed{7}", "accepted"),
        ("gsm", "\\boxed{9^{9^{9^{9}}}}", "timeout"),
    ],
)
def test_mathematics_is_compared(
    mathematics: Path, comparing: SandboxClient, wanted: str, answer: str, outcome: str
) -> None:
    problem = next(one for one in load(mathematics, "sums").problems if one.id == wanted)
    limits = RunLimits(run_s=10.0) if outcome == "timeout" else RunLimits()
    assert comparing.grade_until_first_failure(problem, answer, limits).outcome == outcome


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_model_is_judged_and_the_packages_are_locked(mathematics: Path, comparing: SandboxClient) -> None:
    def answers(ask: str, number: int) -> str:
        return "\\boxed{7}" if "3 and 4" in ask else "\\boxed{1/2}"

    with playing(Player(answers)) as player:
        directory = export(mathematics / "export")
        assert run_root(judge_argv(mathematics, directory, player.url, comparing.url, suite="sums")) == 0
    found: dict[str, Any] = json.loads((mathematics / "out/export/summary.json").read_text())
    assert found["by_problem"]["sums"]["accepted_at_1"] == {"half": [1.0], "roots": [0.0], "gsm": [1.0]}
    assert found["lock"]["parts"]["scoring"]["math"]["math-verify"] == "0.9.0"
