"""The evaluation of `sft`: a server that plays answers, a real sandbox, checkpoints as verl leaves them, the choice."""

from __future__ import annotations

import contextlib
import json
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playbox import Player, playing
from sft import choose, eval_config, evaluate, tiny
from sft.checkpoints import find_checkpoints

from rlbox.evaluation.files import BEST_FILE, HISTORY_FILE, read_results_sorted_by_step
from rlbox.evaluation.model_server import MultiServerModelClient
from rlbox.evaluation.sandbox_client import run_sandbox_and_yield_url
from rlbox.evaluation.suites import ProblemDirectories, SuiteOrProblemError, load_suite, load_suites_with_problems
from rlbox.system.http import create_loopback_client

TIERS = {1: 317, 2: 817, 3: 1146}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[str]:
    with run_sandbox_and_yield_url("", 30, 1024) as url:
        yield url


def solving(ask: str, number: int) -> str:
    """Solve what is asked, by the number in the task."""
    found = re.search(r"(?:plus|adds) (\d+)\.", ask)
    assert found
    body = f"print(int(input()) + {found[1]})" if "Read x" in ask else f"def add(x):\n    return x + {found[1]}"
    return f"Here it is:\n```python\nimport sys\n{body}\n```\n"


def failing(ask: str, number: int) -> str:
    """Answer with programs that run, and print nothing."""
    return "```python\ndef add(x):\n    return None\n```"


@pytest.fixture
def player() -> Iterator[Player]:
    with playing(Player(solving)) as found:
        yield found


def checkpoint(folder: Path, step: int) -> Path:
    export = folder / f"global_step_{step}" / "huggingface"
    export.mkdir(parents=True)
    (export / "config.json").write_text("{}")
    (export / "tokenizer.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (export / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<I", step))
    return export


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a space in its name, as the seed's, with problem sets and four checkpoints."""
    folder = tmp_path / "phase_1_ SFT"
    tiny.write_problems(folder / "raw", each=1)
    for step in (100, 200, 300, 378):
        checkpoint(folder / "checkpoints", step)
    return folder


def run(project: Path, player: Player, sandbox: str, monkeypatch: pytest.MonkeyPatch, *more: str) -> int | str | None:
    """Judge; the server that plays stands for the one that is started for each checkpoint."""
    words = [f"--{name}={project / name}" for name in ("checkpoints", "out", "raw", "manifests")]
    words += ["--sandbox-url", sandbox]
    words += ["--any-size", "true", "--concurrency", "4", *more]
    http = create_loopback_client(60)
    played = lambda export, folder: contextlib.nullcontext(MultiServerModelClient([player.url], http))  # noqa: E731
    monkeypatch.setattr(evaluate, "serve", lambda args, settings: played)
    return ended(evaluate.main, words, monkeypatch)


def ended(main: Any, words: list[str], monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["program", *words])
    try:
        main()
    except SystemExit as stop:
        return stop.code
    return 0


def history(project: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (project / "out" / HISTORY_FILE).read_text().splitlines()]


def test_every_checkpoint_is_judged_with_the_seeds_parameters(
    project: Path, player: Player, sandbox: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(project, player, sandbox, monkeypatch) == 0
    said = capsys.readouterr().out
    assert f"[evaluate] passed: 4 checkpoints in {project / 'out' / HISTORY_FILE}" in said
    rows = history(project)
    assert [(row["step"], len(row["scores"])) for row in rows] == [(100, 2), (200, 2), (300, 2), (378, 5)]
    assert all(score["accepted_at_1"] == 1.0 for row in rows for score in row["scores"].values())
    assert {(a["temperature"], a["top_p"], a["max_tokens"]) for a in player.bodies} == {(0.0, 1.0, 2048)}
    step = project / "out/step_378"
    assert {"metrics.json", "summary.json", "eval_info.json", "run_info.json", "qa_logs", "per_problem"} <= {
        path.name for path in step.iterdir()
    }
    assert json.loads((step / "metrics.json").read_text())["humaneval/accepted_at_1"] == 1.0
    lock = json.loads((step / "eval_info.json").read_text())
    assert lock["parts"]["sandbox"]["limits"]["humaneval"] == {"run_s": 30.0, "memory_mb": 1024}
    assert lock["parts"]["engine"]["settings"]["max_model_len"] == 6144
    told = json.loads((step / "run_info.json").read_text())
    assert (told["tier"], told["expected_at_most_s"], told["engine"]) == (3, 2 * 35 * 60, "vllm")


def test_what_is_done_is_not_asked_again_and_one_bad_checkpoint_stops_nothing(
    project: Path, player: Player, sandbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "checkpoints/global_step_200/huggingface/config.json").unlink()
    code = run(project, player, sandbox, monkeypatch, "--final-tier", "1")
    assert "step_200: incomplete checkpoint" in str(code)
    assert [one.step for one in read_results_sorted_by_step(project / "out")] == [100, 300, 378]
    before = len(player.bodies)
    (kept,) = (project / "out/step_300/per_problem/mbpp_reg").iterdir()
    kept.unlink()
    run(project, player, sandbox, monkeypatch, "--final-tier", "1")
    assert len(player.bodies) == before + 1


def test_a_higher_tier_of_one_checkpoint_asks_only_what_is_new(
    project: Path, player: Player, sandbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(project, player, sandbox, monkeypatch, "--only", "200") == 0
    assert [(row["step"], len(row["scores"])) for row in history(project)] == [(200, 2)]
    assert "no global_step_250" in str(run(project, player, sandbox, monkeypatch, "--only", "250"))
    before = len(player.bodies)
    assert run(project, player, sandbox, monkeypatch, "--only", "200", "--tier", "3") == 0
    assert len(player.bodies) == before + 3  # a problem of each suite that tier 3 has besides


def test_one_server_is_not_asked_for_several(
    project: Path, player: Player, sandbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = str(run(project, player, sandbox, monkeypatch, "--vllm-url", player.url))
    assert f"{player.url} serves one model: say with --only which checkpoint it is" in told
    assert run(project, player, sandbox, monkeypatch, "--vllm-url", player.url, "--only", "100") == 0
    told = str(run(project, player, sandbox, monkeypatch, "--vllm-url", player.url, "--only", "100", "--base", "x"))
    assert "serves one model" in told


def test_a_dead_sandbox_is_said_before_anything_is_asked(
    project: Path, player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = str(run(project, player, "http://127.0.0.1:9", monkeypatch))
    assert "training does not need the code sandbox, the evaluation does" in told
    assert player.bodies == []


def test_what_cannot_be_judged_is_said(
    project: Path, player: Player, sandbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = str(run(project, player, sandbox, monkeypatch, "--max-model-len", "2047"))
    assert "--max-model-len 2047 has no room for 2048 new tokens" in small
    assert "113 problems" not in small
    seed = str(run(project, player, sandbox, monkeypatch, "--any-size", "false"))
    assert "1 problems, expected 117" in seed
    (project / "raw/mbpp_reg_raw.jsonl").unlink()
    assert "mbpp_reg_raw.jsonl is missing" in str(run(project, player, sandbox, monkeypatch))
    other = project / "empty"
    other.mkdir()
    assert f"no global_step_* in {other}" in str(
        run(project, player, sandbox, monkeypatch, "--checkpoints", str(other))
    )


@pytest.mark.slow
def test_the_model_before_training_is_the_baseline(
    project: Path, sandbox: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = checkpoint(project / "before", 0)
    tiny.write_problems(project / "raw", each=8)
    with playing(Player(failing)) as player:
        words = ("--base", str(base), "--only", "100", "--tier", "3", "--final-tier", "3")
        assert run(project, player, sandbox, monkeypatch, *words) == 0
    assert [one.name for one in read_results_sorted_by_step(project / "out")] == ["base", "step_100"]
    with playing(Player(solving)) as player:
        assert run(project, player, sandbox, monkeypatch, "--only", "200,300", "--tier", "3") == 0
    (project / "out/step_100/summary.json").unlink()
    capsys.readouterr()
    assert chosen(project, monkeypatch) == 0
    said = capsys.readouterr().out
    assert "best checkpoint: step 200, " in said
    assert "[OK] codecontests_valid accepted@1: +100.0 pp" in said
    best = json.loads((project / "out" / BEST_FILE).read_text())
    assert (best["step"], best["regression"]) == (200, False)
    assert best["model"].endswith("global_step_200/huggingface")
    assert best["path"].endswith("checkpoints/global_step_200")


def chosen(project: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> int | str | None:
    words = ["--out", str(project / "out"), "--checkpoints", str(project / "checkpoints"), *more]
    return ended(choose.main, words, monkeypatch)


def test_a_regression_is_flagged_and_other_locks_refused(
    project: Path, sandbox: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write_problems(project / "raw", each=8)
    for answers, out in ((solving, "phase0"), (failing, "out")):
        with playing(Player(answers)) as player:
            more = ("--only", "100", "--tier", "3", "--out", str(project / out))
            assert run(project, player, sandbox, monkeypatch, *more) == 0
    capsys.readouterr()
    baseline = project / "phase0/step_100/summary.json"
    assert chosen(project, monkeypatch, "--baseline", str(baseline)) == 0
    said = capsys.readouterr().out
    assert re.search(r"\[FAIL\] humaneval accepted@1: -100\.0 points, worse", said)
    assert re.search(r"\[FAIL\] codecontests_valid accepted@1: .*, \+10 pp wanted", said)
    assert json.loads((project / "out" / BEST_FILE).read_text())["regression"] is True
    found = json.loads(baseline.read_text())
    found["lock"]["parts"]["engine"]["version"] = "9"
    from rlbox.evaluation.lock import digest_json

    found["lock"]["digest"] = digest_json(found["lock"]["parts"])
    baseline.write_text(json.dumps(found))
    told = str(chosen(project, monkeypatch, "--baseline", str(baseline)))
    assert "the evaluation locks differ: engine.version: '9' and '0.0.1'" in told


def test_what_was_not_judged_is_said(
    project: Path, player: Player, sandbox: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no checkpoint was judged" in str(chosen(project, monkeypatch))
    assert run(project, player, sandbox, monkeypatch, "--only", "100") == 0
    assert chosen(project, monkeypatch) == 0
    said = capsys.readouterr().out
    assert "step 100 was not judged on humaneval: --from evaluate --set only=100 --set tier=3" in said
    assert "judge the model before training for one: --set base=FOLDER" in said
    assert json.loads((project / "out" / BEST_FILE).read_text())["regression"] is False


def test_sets_have_the_seeds_sizes_and_parameters(tmp_path: Path) -> None:
    suites = {name: load_suite(name) for name in eval_config.TIERS[3]}
    assert {tier: sum(suites[name].rows for name in names) for tier, names in eval_config.TIERS.items()} == TIERS
    assert eval_config.MINUTES == {1: 10, 2: 20, 3: 35}
    for name, suite in suites.items():
        assert suite.file == eval_config.raw_file(name)
        assert (suite.decoding.temperature, suite.decoding.top_p, suite.decoding.max_tokens) == (0.0, 1.0, 2048)
        assert (suite.decoding.samples, suite.limits.run_s, suite.limits.memory_mb) == (1, 30.0, 1024)
    tiny.write_problems(tmp_path, each=2)
    with pytest.raises(SuiteOrProblemError, match="2 problems, expected 200"):
        load_suites_with_problems(["mbpp_reg"], ProblemDirectories(tmp_path, problem_id_list_directory=tmp_path))


def test_checkpoints_are_found_by_number(tmp_path: Path) -> None:
    for step in (1000, 200, 30):
        checkpoint(tmp_path, step)
    export = checkpoint(tmp_path, 400)
    (export / "model.safetensors").write_bytes((export / "model.safetensors").read_bytes()[:-1])
    found = find_checkpoints(tmp_path)
    assert [item.step for item in found] == [30, 200, 400, 1000]
    assert [item.step for item in found if item.missing] == [400]


def test_how_an_export_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--checkpoints", "c", "--out", "o", "--raw", "r", "--manifests", "m", "--sandbox-url", "u"]
    args = evaluate.options([*words, "--python", "/opt/python", "--tensor-parallel", "2", "--gpu-memory", "0.5"])
    settings = evaluate.engine_settings(args)
    assert settings == {
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.5,
        "max_model_len": 6144,
        "dtype": "bfloat16",
        "trust_remote_code": False,
    }
    assert evaluate.engine_settings(evaluate.options([*words, "--engine", "hf"])) == {"engine": "transformers"}
    assert evaluate.engine_settings(evaluate.options([*words, "--remote-code", "true"]))["trust_remote_code"] is True
    started: list[Any] = []
    monkeypatch.setattr(evaluate, "serve_model", lambda engines, folder, http: started.append((engines, folder)))
    small = evaluate.options([*words, "--engine", "hf", "--python", "/opt/python", "--port", "1", "--start-s", "7"])
    evaluate.serve(small, {})(Path("/e"), tmp_path)
    (((engine,), folder),) = started
    assert engine.argv == ("/opt/python", "-m", "sft.hf_server", "--model", "/e", "--port", "1")
    assert (engine.url, engine.start_timeout_s, folder) == ("http://127.0.0.1:1", 7.0, tmp_path)
