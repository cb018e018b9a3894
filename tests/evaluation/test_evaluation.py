"""The evaluation's programs on a server that plays answers and the real sandbox."""

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
from playbox import Player, adding, export, playing, write_rows

from rlbox.evaluation.__main__ import main


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


def words(site: Path, url: str, sandbox: str, *more: str, step: int = 100, out: str = "out") -> list[str]:
    folder = site / f"step_{step}"
    if not folder.exists():
        export(folder, seed=step % 250)
    return [
        *("judge", "--export", f"step_{step}={step}={folder}", "--suites", "adding", "--own", str(site / "suites")),
        *("--problems", str(site / "problems"), "--manifests", str(site / "manifests"), "--out", str(site / out)),
        *("--sandbox-url", sandbox, "--url", url, *more),
    ]


def test_a_checkpoint_is_judged_and_all_files_are_there(
    site: Path, sandbox_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with playing(Player(some)) as player:
        assert main(words(site, player.url, sandbox_url)) == 0
    said = capsys.readouterr().out
    assert "[evaluate] step_100 adding: accepted@1 33.33%, exec 100.00% of 12" in said
    assert "[evaluate] passed: 1 checkpoints" in said
    folder = site / "out" / "step_100"
    for name in ("metrics.json", "summary.json", "eval_info.json", "run_info.json", "qa_logs/adding.jsonl"):
        assert (folder / name).is_file()
    lock = json.loads((folder / "eval_info.json").read_text())
    assert lock["parts"]["prompts"]["adding"]["as"] == "tokens"
    assert lock["parts"]["engine"] == {"settings": {}, "environment": {}, "version": "0.0.1", "max_model_len": 4096}
    assert lock["parts"]["sandbox"]["strength"]
    assert len((site / "out" / "eval_history.jsonl").read_text().splitlines()) == 1
    body = player.bodies[0]
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.0, 1.0, 2048)
    assert "seed" not in body


def test_what_was_judged_is_not_asked_again(site: Path, sandbox_url: str) -> None:
    with playing(Player(right)) as player:
        assert main(words(site, player.url, sandbox_url)) == 0
        first = dict(player.asked)
        assert main(words(site, player.url, sandbox_url)) == 0
        assert player.asked == first


def test_other_weights_are_asked_anew(site: Path, sandbox_url: str) -> None:
    with playing(Player(right)) as player:
        assert main(words(site, player.url, sandbox_url)) == 0
        shard = site / "step_100" / "model.safetensors"
        shard.write_bytes(shard.read_bytes()[:-1] + b"\xff")
        assert main(words(site, player.url, sandbox_url)) == 0
        assert set(player.asked.values()) == {2}


def test_a_server_without_tokens_is_asked_by_text_and_the_lock_says_so(site: Path, sandbox_url: str) -> None:
    with playing(Player(right, tokenizes=False)) as player:
        assert main(words(site, player.url, sandbox_url)) == 0
    lock = json.loads((site / "out" / "step_100" / "eval_info.json").read_text())
    assert lock["parts"]["prompts"]["adding"]["as"] == "text"
    assert "messages" in player.bodies[0]


def test_another_model_that_answers_is_refused(
    site: Path, sandbox_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with playing(Player(right, model="other")) as player:
        assert main(words(site, player.url, sandbox_url)) == 1
    assert "'other' answered, 'judged' was asked (P195)" in capsys.readouterr().err


def test_a_server_that_fails_in_the_middle_loses_nothing(
    site: Path, sandbox_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with playing(Player(right)) as player:
        player.refuses = lambda: sum(player.asked.values()) > 6
        assert main(words(site, player.url, sandbox_url, "--at-once", "1")) == 1
        assert "status 500" in capsys.readouterr().err
        before = dict(player.asked)
        player.refuses = lambda: False
        assert main(words(site, player.url, sandbox_url)) == 0
        asked_again = {ask for ask, count in player.asked.items() if count > 1}
        assert len(asked_again) <= 1  # the one that was refused
        assert len(before) < 12


def test_a_sandbox_that_fails_is_an_error_and_no_score(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with playing(Player(right)) as player:
        assert main(words(site, player.url, "http://127.0.0.1:9")) == 1
    assert "step_100:" in capsys.readouterr().err
    assert not (site / "out" / "step_100" / "summary.json").exists()


def test_answers_are_kept_when_the_sandbox_dies_behind_them(site: Path, sandbox_url: str) -> None:
    from rlbox.evaluation.result_files import AnswerFiles

    kept = AnswerFiles(site, {"adding": "key"})
    kept.write("adding", {"problem": "Add/1", "number": 0, "text": "x", "finish": "stop", "tokens": 1})
    assert "outcome" not in (kept.read("adding", "Add/1", 0) or {"outcome": ""})
    kept.write(
        "adding", {"problem": "Add/1", "number": 0, "text": "x", "finish": "stop", "tokens": 1, "outcome": "sandbox"}
    )
    assert kept.read("adding", "Add/1", 0) == {
        "problem": "Add/1",
        "number": 0,
        "text": "x",
        "finish": "stop",
        "tokens": 1,
    }
    assert AnswerFiles(site, {"adding": "other"}).read("adding", "Add/1", 0) is None


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "", "." * 40, "x" * 300, "\ud800", "a b"])
def test_no_name_of_a_problem_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    from rlbox.evaluation.result_files import AnswerFiles

    kept = AnswerFiles(tmp_path / "in", {"suite": "key"})
    kept.write("suite", {"problem": name, "number": 0, "outcome": "wrong"})
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(found) == 1
    assert found[0].parent == tmp_path / "in" / "per_problem" / "suite"


def test_several_answers_to_a_problem_are_seeded_and_counted(site: Path, sandbox_url: str) -> None:
    suite = site / "suites" / "adding.toml"
    suite.write_text(suite.read_text() + "[decoding]\ntemperature = 0.8\nsamples = 4\nseed = 7\n")
    with playing(Player(lambda ask, number: right(ask, number) if number % 2 else "no code here")) as player:
        assert main(words(site, player.url, sandbox_url, "--at-once", "1")) == 0
    summary = json.loads((site / "out" / "step_100" / "summary.json").read_text())
    scores = summary["scores"]["adding"]
    assert (scores["problems"], scores["answers"]) == (12, 48)
    assert scores["accepted_at_1"] == 0.5
    assert scores["pass_at"] == {"2": pytest.approx(5 / 6), "4": 1.0}
    assert sorted({body["seed"] for body in player.bodies}) == [7, 8, 9, 10]


def test_the_best_is_chosen_and_held_against_the_baseline(
    site: Path, sandbox_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for step, answers in ((100, some), (200, right)):
        with playing(Player(answers)) as player:
            assert main(words(site, player.url, sandbox_url, step=step)) == 0
    with playing(Player(right)) as player:
        assert main(words(site, player.url, sandbox_url, step=0, out="baseline")) == 0
    capsys.readouterr()
    assert main(["choose", "--out", str(site / "out")]) == 1
    assert "no suite that decides was judged of all checkpoints: codecontests_valid" in capsys.readouterr().err
    baseline = site / "baseline" / "step_0" / "summary.json"
    choosing = [
        "choose",
        "--out",
        str(site / "out"),
        "--baseline",
        str(baseline),
        "--guard",
        "adding",
        "--by",
        "adding",
    ]
    assert main(choosing) == 0
    said = capsys.readouterr().out
    assert "best checkpoint: step 200" in said
    assert "[OK] adding accepted@1" in said
    best = json.loads((site / "out" / "best_checkpoint.json").read_text())
    assert (best["regression"], best["model"]) == (False, str(site / "step_200"))
    (site / "out/step_200/summary.json").unlink()
    assert main(choosing) == 0
    assert "[FAIL] adding accepted@1: -66.7 points, worse" in capsys.readouterr().out


def test_two_results_are_compared_and_other_protocols_refused(
    site: Path, sandbox_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for step, answers in ((100, some), (200, right)):
        with playing(Player(answers)) as player:
            assert main(words(site, player.url, sandbox_url, step=step)) == 0
    suite = site / "suites" / "adding.toml"
    suite.write_text(suite.read_text() + "[decoding]\nmax_tokens = 1024\n")
    with playing(Player(right)) as player:
        assert main(words(site, player.url, sandbox_url, step=300)) == 0
    capsys.readouterr()
    one, two, three = (str(site / "out" / f"step_{step}" / "summary.json") for step in (100, 200, 300))
    assert main(["compare", two, one]) == 0
    assert "8 won, 0 lost of 12" in capsys.readouterr().out
    assert main(["compare", three, one]) == 1
    assert "decoding.adding.max_tokens: 1024 and 2048" in capsys.readouterr().err
    assert main(["compare", three, one, "--across", "decoding"]) == 0
    assert "across decoding.adding.max_tokens" in capsys.readouterr().out


def test_a_suite_is_proven_with_its_own_solutions(
    site: Path, sandbox_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["prove", "--suites", "adding", "--own", str(site / "suites"), "--problems", str(site / "problems")]
    asked += ["--sandbox-url", sandbox_url]
    assert main(asked) == 0
    assert "adding: 12 of 12 own solutions are accepted" in capsys.readouterr().out
    rows = adding(12)
    rows[3]["canonical_solution"] = "    return x\n"
    write_rows(site / "problems" / "adding.jsonl", rows)
    assert main(asked) == 1
    assert "[FAIL] adding Add/3: its own solution is wrong here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("", "adding has no problem"),
        ('{"task_id": 1}\n', "is no problem"),
        ("no json\n", "adding.jsonl:1: no JSON"),
        ("[]\n", "a row is an object"),
        (None, "is missing: bring the raw problem sets (P165)"),
        ("".join(json.dumps(row) + "\n" for row in adding(1) * 2), "two problems are called 'Add/0'"),
        ("".join(json.dumps(row) + "\n" for row in adding(3)), "3 problems, it has 12"),
    ],
)
def test_problems_that_are_none_are_refused(
    site: Path, sandbox_url: str, capsys: pytest.CaptureFixture[str], rows: str | None, told: str
) -> None:
    path = site / "problems" / "adding.jsonl"
    path.unlink()
    if rows is not None:
        path.write_text(rows)
    assert main(words(site, "http://127.0.0.1:9", sandbox_url)) == 1
    assert told in capsys.readouterr().err


def test_an_unknown_suite_is_told_with_those_there_are(
    site: Path, sandbox_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = words(site, "http://127.0.0.1:9", sandbox_url)
    asked[asked.index("adding")] = "nosuch"
    assert main(asked) == 1
    assert "there is no suite 'nosuch'; there are adding, codecontests_test" in capsys.readouterr().err


KILLS = int(os.environ.get("RLBOX_EVAL_KILLS", "5"))


def test_kills_at_random_points_lose_nothing_and_ask_nothing_twice(site: Path, sandbox_url: str) -> None:
    """`make nightly ARGS=evaluation` takes a hundred; each may come anywhere in the life of the process."""
    rng, out = random.Random(6), site / "out"
    with playing(Player(some)) as player:
        line = [sys.executable, "-m", "rlbox.evaluation", *words(site, player.url, sandbox_url, "--at-once", "2")]
        began = time.monotonic()
        assert subprocess.run([*line, "--out", str(site / "whole")], check=False).returncode == 0
        whole_s, settled = time.monotonic() - began, dict[str, int]()
        for _ in range(KILLS):
            if len(settled) == 12:  # all is answered: begin anew
                shutil.rmtree(out)
                settled = {}
            process = subprocess.Popen(line)
            time.sleep(rng.uniform(0.2, 1.0) * whole_s)
            process.send_signal(signal.SIGKILL)
            process.wait()
            kept = {json.loads(path.read_text())["ask"] for path in out.rglob("per_problem/*/*.json")}
            assert set(settled) <= kept  # none is lost
            assert all(player.asked[ask] == count for ask, count in settled.items())  # none is asked again
            settled = {ask: player.asked[ask] for ask in kept}
        assert subprocess.run(line, check=False).returncode == 0
        assert all(player.asked[ask] == count for ask, count in settled.items())
    one, other = (json.loads((folder / "step_100/summary.json").read_text()) for folder in (site / "whole", out))
    assert one == other


def test_the_table_says_what_was_not_measured() -> None:
    from rlbox.evaluation.lock import LOCK_PARTS, EvaluationLock
    from rlbox.evaluation.result import EvaluationResult, format_table

    lock = EvaluationLock(parts={name: {} for name in LOCK_PARTS}, subject={})
    one = {"accepted_at_1": 0.25, "accepted_at_1_interval": [0.2, 0.3], "exec_success_rate": 0.5}
    rows = [
        EvaluationResult(name=f"step_{step}", step=step, lock=lock, scores=scores, by_problem={})
        for step, scores in ((100, {"codecontests_valid": one}), (200, {"codecontests_valid": one, "humaneval": one}))
    ]
    cells = [[cell.strip() for cell in line.split("|")] for line in format_table(rows).splitlines()]
    assert cells[0] == ["Step", "codecontests_valid exec", "codecontests_valid accepted@1", "humaneval accepted@1"]
    assert cells[2] == ["100", "50.00% (50.0%-50.0%)", "25.00% (20.0%-30.0%)", "N/A"]
    assert cells[3][3] == "25.00% (20.0%-30.0%)"


def test_how_far_a_suite_is_is_a_bar_of_the_live_view() -> None:
    from rlbox.evaluation.judge import ProgressLine
    from rlbox.logs.progress import ProgressBar, parse_progress_bar

    seconds = iter([0.0, 5.0, 10.0, 12.0, 20.0])
    bar = ProgressLine("Evaluating step_40 humaneval", 4, lambda: next(seconds))
    told = [bar.line(done) for done in (1, 2, 3, 4)]
    assert told == ["", "Evaluating step_40 humaneval: 50%| | 2/4 [0:00:10<0:00:10]", "", ""]
    assert parse_progress_bar(told[1]) == ProgressBar(label="Evaluating step_40 humaneval", done=2, total=4, left_s=10)


def test_one_server_is_not_asked_for_two_exports(
    site: Path, sandbox_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with playing(Player(right)) as player:
        asked = words(site, player.url, sandbox_url, "--export", f"other=2={export(site / 'other')}")
        assert main(asked) == 1
        assert "which of them does it serve?" in capsys.readouterr().err
        assert not player.asked
