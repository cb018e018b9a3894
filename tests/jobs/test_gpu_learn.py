"""The job `learn` of tests/gpu/project: its data, its reward, and a judge that can say no."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import CHECKOUT

JOBS = CHECKOUT / "tests/gpu/project/jobs"
sys.path.insert(0, str(JOBS))

from learn.reward import compute_score  # noqa: E402


@pytest.mark.parametrize(
    ("answer", "score"), [("call", 1.0), (" call\n", 1.0), ("calls", 0.0), ("", 0.0), ("fold", 0.0)]
)
def test_reward(answer: str, score: float) -> None:
    assert compute_score("rlbox/holdem", answer, "call") == score


def written(folder: Path, right: dict[int, int]) -> Path:
    """Write tests as verl does: a file a step, a line a question."""
    folder.mkdir()
    for step, count in right.items():
        rows = [{"input": f"question {at}", "output": "x", "score": float(at < count)} for at in range(200)]
        (folder / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def judge(grpo: Path, control: Path) -> subprocess.CompletedProcess[str]:
    words = ["--grpo", grpo, "--control", control, "--least", "0.1", "--out", grpo.parent / "out.json"]
    return subprocess.run([sys.executable, "-m", "learn.judge", *words], cwd=JOBS, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("grpo", "control", "said"),
    [
        ({0: 90, 10: 150}, {0: 90, 10: 92}, "[learn] passed"),
        ({0: 90, 10: 105}, {0: 90, 10: 92}, "GRPO has not learnt"),  # 0.075 is less than 0.1
        ({0: 90, 10: 60}, {0: 90, 10: 92}, "GRPO has not learnt"),
        ({0: 90, 10: 150}, {0: 90, 10: 140}, "the control has risen, too"),
        ({0: 90}, {0: 90, 10: 92}, "has 1 tests; it takes two"),
    ],
)
def test_the_judge(tmp_path: Path, grpo: dict[int, int], control: dict[int, int], said: str) -> None:
    done = judge(written(tmp_path / "grpo", grpo), written(tmp_path / "control", control))
    assert said in done.stdout + done.stderr
    assert (done.returncode == 0) == (said == "[learn] passed")


def test_questions_of_another_test_are_no_rise(tmp_path: Path) -> None:
    grpo = written(tmp_path / "grpo", {0: 90})
    (grpo / "10.jsonl").write_text(json.dumps({"input": "another", "score": 1.0}) + "\n")
    done = judge(grpo, grpo)
    assert done.returncode == 1
    assert "not of the same questions" in done.stderr
