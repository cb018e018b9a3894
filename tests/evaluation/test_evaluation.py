"""`rlbox eval judge` on a server that plays answers and the real sandbox."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from playbox import Player, adding, export, judge_argv, playing

from rlbox.cli.root import run_root
from rlbox.evaluation.comparison import format_scores_by_checkpoint
from rlbox.evaluation.evaluate import ProgressPrinter
from rlbox.evaluation.files import AnswerStore
from rlbox.evaluation.lock import LOCK_PARTS, EvaluationLock
from rlbox.evaluation.result import EvaluationResult
from rlbox.evaluation.suites import Problem, Suite, SuiteProblems
from rlbox.logs.progress import ProgressBar, parse_bar_not_counting_steps


def right(ask: str, number: int) -> str:
    """Define the whole function, as chat models do, with a helper of the prompt."""
    wanted = re.search(r"plus (\d+)\.", ask)
    assert wanted
    return f"Here:\n```python\ndef add(x):\n    return plus(x, {wanted[1]})\n```\n"


def some(ask: str, number: int) -> str:
    """Solve every third task."""
    wanted = re.search(r"plus (\d+)\.", ask)
    assert wanted
    return right(ask, number) if int(wanted[1]) % 3 == 0 else "```python\ndef add(x):\n    return 0\n```"


def argv(site: Path, url: str, sandbox: str, *more: str) -> list[str]:
    directory = site / "step_100"
    if not directory.exists():
        export(directory, seed=100)
    return judge_argv(site, directory, url, sandbox, *more)


def test_judge_a_checkpoint_writes_all_files(site: Path, sandbox_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with playing(Player(some)) as player:
        assert run_root(argv(site, player.url, sandbox_url)) == 0
    assert "[evaluate] step_100 adding: accepted@1 33.33%, exec 100.00% of 12" in capsys.readouterr().err
    directory = site / "out/step_100"
    for name in ("metrics.json", "summary.json", "run_info.json", "qa_logs/adding.jsonl"):
        assert (directory / name).is_file()
    lock = json.loads((directory / "eval_info.json").read_text())
    assert lock["parts"]["prompts"]["adding"]["as"] == "tokens"
    assert lock["parts"]["engine"] == {"settings": {}, "environment": {}, "version": "0.0.1", "max_model_len": 4096}
    assert lock["parts"]["sandbox"]["strength"]
    assert len((site / "out/eval_history.jsonl").read_text().splitlines()) == 1
    body = player.bodies[0]
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.0, 1.0, 2048)
    assert "seed" not in body


def test_judge_again_asks_nothing_and_other_weights_everything(site: Path, sandbox_url: str) -> None:
    with playing(Player(right)) as player:
        for __ in range(2):
            assert run_root(argv(site, player.url, sandbox_url)) == 0
            assert set(player.asked.values()) == {1}
        shard = site / "step_100/model.safetensors"
        shard.write_bytes(shard.read_bytes()[:-1] + b"\xff")
        assert run_root(argv(site, player.url, sandbox_url)) == 0
        assert set(player.asked.values()) == {2}


def test_judge_a_server_without_tokens_sends_text(site: Path, sandbox_url: str) -> None:
    with playing(Player(right, tokenizes=False)) as player:
        assert run_root(argv(site, player.url, sandbox_url)) == 0
    lock = json.loads((site / "out/step_100/eval_info.json").read_text())
    assert lock["parts"]["prompts"]["adding"]["as"] == "text"
    assert "messages" in player.bodies[0]


def test_judge_another_model_is_refused(site: Path, sandbox_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with playing(Player(right, model="other")) as player:
        assert run_root(argv(site, player.url, sandbox_url)) == 1
    assert "'other' answered, 'judged' was asked" in capsys.readouterr().err


def test_judge_with_a_failing_sandbox_has_no_score(site: Path) -> None:
    with playing(Player(right)) as player:
        assert run_root(argv(site, player.url, "http://127.0.0.1:9")) == 1
    assert not (site / "out/step_100/summary.json").exists()


def test_judge_an_export_that_changes_meanwhile_has_no_score(
    site: Path, sandbox_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(ask: str, number: int) -> str:
        os.utime(site / "step_100/config.json", (1, 1))
        return right(ask, number)

    with playing(Player(answer)) as player:
        assert run_root(argv(site, player.url, sandbox_url)) == 1
    assert "changed while it was judged" in capsys.readouterr().err


def test_answer_store_returns_an_answer_whose_sandbox_failed_without_its_verdict(tmp_path: Path) -> None:
    answers = AnswerStore(tmp_path, {"adding": "key"})
    record = {"problem": "Add/1", "number": 0, "text": "x", "finish": "stop", "tokens": 1}
    answers.replace_answer_with_cache_key("adding", {**record, "outcome": "sandbox"})
    assert answers.read("adding", "Add/1", 0) == record
    assert AnswerStore(tmp_path, {"adding": "other"}).read("adding", "Add/1", 0) is None


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "", "." * 40, "x" * 300, "\ud800", "a b"])
def test_answer_store_writes_any_problem_name_into_its_directory(tmp_path: Path, name: str) -> None:
    AnswerStore(tmp_path / "in", {"suite": "key"}).replace_answer_with_cache_key(
        "suite", {"problem": name, "number": 0, "outcome": "wrong"}
    )
    (path,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert path.parent == tmp_path / "in/per_problem/suite"


def test_judge_several_answers_to_a_problem_seeds_and_counts_them(site: Path, sandbox_url: str) -> None:
    suite = site / "suites/adding.toml"
    suite.write_text(suite.read_text() + "[decoding]\ntemperature = 0.8\nsamples = 4\nseed = 7\n")
    with playing(Player(lambda ask, number: right(ask, number) if number % 2 else "no code here")) as player:
        assert run_root(argv(site, player.url, sandbox_url, "--at-once", "1")) == 0
    scores = json.loads((site / "out/step_100/summary.json").read_text())["scores"]["adding"]
    assert (scores["problems"], scores["answers"], scores["accepted_at_1"]) == (12, 48, 0.5)
    assert scores["pass_at"] == {"2": pytest.approx(5 / 6), "4": 1.0}
    assert sorted({body["seed"] for body in player.bodies}) == [7, 8, 9, 10]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("", "adding has no problem"),
        ('{"task_id": 1}\n', "is not a problem"),
        ("no json\n", "adding.jsonl:1: cannot be read"),
        ("[]\n", "a row is an object"),
        (None, "is missing: bring the raw problem sets"),
        ("".join(json.dumps(row) + "\n" for row in adding(1) * 2), "two problems are called 'Add/0'"),
        ("".join(json.dumps(row) + "\n" for row in adding(3)), "3 problems, expected 12"),
    ],
)
def test_judge_rows_that_are_no_problems_are_refused(
    site: Path, capsys: pytest.CaptureFixture[str], rows: str | None, message: str
) -> None:
    path = site / "problems/adding.jsonl"
    path.unlink()
    if rows is not None:
        path.write_text(rows)
    assert run_root(argv(site, "http://127.0.0.1:9", "http://127.0.0.1:9")) == 2
    assert message in capsys.readouterr().err


KILLS = int(os.environ.get("RLBOX_EVAL_KILLS", "5"))


def test_judge_killed_at_random_points_loses_nothing_and_asks_nothing_twice(site: Path, sandbox_url: str) -> None:
    """Each kill may come anywhere in the life of the process."""
    rng, out = random.Random(6), site / "out"
    with playing(Player(some)) as player:
        command = [sys.executable, "-m", "rlbox", *argv(site, player.url, sandbox_url, "--at-once", "2")]
        began = time.monotonic()
        assert subprocess.run([*command, "--out", str(site / "complete")], check=False).returncode == 0
        complete_s, settled = time.monotonic() - began, dict[str, int]()
        for _ in range(KILLS):
            if len(settled) == 12:  # all is answered: begin anew
                shutil.rmtree(out)
                settled = {}
            process = subprocess.Popen(command)
            time.sleep(rng.uniform(0.2, 1.0) * complete_s)
            process.send_signal(signal.SIGKILL)
            process.wait()
            kept = {json.loads(path.read_text())["ask"] for path in out.rglob("per_problem/*/*.json")}
            assert set(settled) <= kept  # none is lost
            assert all(player.asked[ask] == count for ask, count in settled.items())  # none is asked again
            settled = {ask: player.asked[ask] for ask in kept}
        assert subprocess.run(command, check=False).returncode == 0
        assert all(player.asked[ask] == count for ask, count in settled.items())
    first, second = (json.loads((path / "step_100/summary.json").read_text()) for path in (site / "complete", out))
    assert first == second


def test_the_table_says_what_was_not_measured() -> None:
    lock = EvaluationLock(parts={name: {} for name in LOCK_PARTS}, subject={})
    scores = {"accepted_at_1": 0.25, "accepted_at_1_interval": [0.2, 0.3], "exec_success_rate": 0.5}
    results = [
        EvaluationResult(name=f"step_{step}", step=step, lock=lock, scores=suites, values={})
        for step, suites in (
            (100, {"codecontests_valid": scores}),
            (200, {"codecontests_valid": scores, "humaneval": scores}),
        )
    ]
    cells = [[cell.strip() for cell in line.split("|")] for line in format_scores_by_checkpoint(results).splitlines()]
    assert cells[0] == ["Step", "codecontests_valid exec", "codecontests_valid accepted@1", "humaneval accepted@1"]
    assert cells[2] == ["100", "50.00% (50.0%-50.0%)", "25.00% (20.0%-30.0%)", "N/A"]
    assert cells[3][3] == "25.00% (20.0%-30.0%)"


def test_progress_is_a_bar_of_the_live_view() -> None:
    seconds, lines = iter([0.0, 10.0, 12.0, 20.0]), list[str]()
    problems = [Problem(id=str(number), message="") for number in range(4)]
    suites = [SuiteProblems(Suite(name="humaneval", title="x"), problems)]
    progress = ProgressPrinter("step_40", suites, lines.append, lambda: next(seconds))
    for _ in problems:
        progress.count_answer_and_print_if_due("humaneval")
    assert lines == ["Evaluating step_40 humaneval: 50%| | 2/4 [0:00:10<0:00:10]"]
    assert parse_bar_not_counting_steps(lines[0]) == ProgressBar(
        label="Evaluating step_40 humaneval", done=2, total=4, left_s=10
    )
