"""The plan of `sft`, and its programs around the trainer: steps, room, exports, data, the expected corridor."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jobplan import overrides, plan_of, settings_of, stage_of
from sft import checkpoints, choose, corridor, data, plan, train
from test_sft_evaluation import checkpoint

from rlbox.evaluation.lock import LOCK_PARTS, EvaluationLock
from rlbox.evaluation.result import ACCEPTED, EXECUTED, EvaluationResult

MODULE = "verl.trainer.sft_trainer"


def settings(stage: str, profile: str = "", **given: str) -> dict[str, str]:
    return settings_of(overrides(stage_of(plan_of("sft", profile, given), stage), MODULE))


def test_code_of_a_repository_must_lie_in_a_folder(tmp_path: Path) -> None:
    assert settings("train")["model.trust_remote_code"] == settings("smoke")["model.trust_remote_code"] == "False"
    trusting = overrides(stage_of(plan_of("sft", "", {"remote_code": "true"}), "train"), MODULE)
    assert train.remote_code_problem(trusting) == (
        "remote_code: Qwen/Qwen2.5-Coder-7B-Instruct is no folder, and whoever changes that repository runs code here: "
        "hf download Qwen/Qwen2.5-Coder-7B-Instruct --revision COMMIT --local-dir DIR, then name DIR"
    )
    assert train.remote_code_problem([*trusting, f"model.path={tmp_path}"]) == ""
    assert train.remote_code_problem(["model.path=Qwen/x", "model.trust_remote_code=False"]) == ""


def test_steps_and_accumulation() -> None:
    assert plan.saved_steps(2020, 4, 16, 3, 0, 100) == [100, 200, 300, 378]
    assert plan.saved_steps(0, 1, 16, 1, 10, 5) == [5, 10]
    assert [plan.accumulation(16, gpus, micro) for gpus, micro in ((4, 2), (2, 4), (1, 2))] == [2, 2, 8]
    with pytest.raises(ValueError, match="the nearest is 15"):
        plan.accumulation(16, 3, 5)


def test_room_of_four_checkpoints() -> None:
    assert plan.room_needed(7.6, 4, 0) / 1e9 == pytest.approx(4 * 7.6 * 16)  # more than the 200 GB of P144
    assert plan.room_needed(7.6, 4, 1) / 1e9 == pytest.approx(4 * 7.6 * 4 + 2 * 7.6 * 12)
    assert plan.room_needed(7.6, 4, 1, "[model,extra,hf_model]") / 1e9 < 186  # of the 200 GB of P143
    assert plan.room_needed(0, 4, 1) == 0


def shards(folder: Path, step: int) -> list[str]:
    return sorted(path.name for path in (folder / f"global_step_{step}").glob("*.pt"))


def test_only_earlier_checkpoints_with_an_export_lose_their_shards(tmp_path: Path) -> None:
    for step in (5, 10, 15, 20):
        checkpoint(tmp_path, step)
        for kind in ("model", "optim", "extra_state"):
            (tmp_path / f"global_step_{step}/{kind}_world_size_1_rank_0.pt").write_text("x")
    (tmp_path / "global_step_5/huggingface/config.json").unlink()
    (tmp_path / train.TRACKER).write_text("15")  # 20 is being written
    assert len(train.prune(tmp_path, 1)) == 2
    assert [len(shards(tmp_path, step)) for step in (5, 10, 15, 20)] == [3, 1, 3, 3]
    assert train.prune(tmp_path, 0) == []


def run_train(tmp_path: Path, command: str, *more: str) -> subprocess.CompletedProcess[str]:
    words = ["--title", "Phase 1 SFT - Smoke Test", "--says", "1 GPU, 10 steps", "--done", "Smoke test passed!"]
    words += ["--checkpoints", str(tmp_path / "a b"), "--steps", "10", "--save-every", "5"]
    words += ["--exports", str(tmp_path / "exports.json")]
    words += ["--metrics", str(tmp_path / "m.jsonl"), *more, "--", sys.executable, "-c", command]
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from sft import train; train.main()"
    argv = (sys.executable, "-c", code, str(Path(__file__).parents[2] / "jobs"), *words)
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_the_export_is_proved_and_the_exit_code_kept(tmp_path: Path) -> None:
    for step in (5, 10):
        checkpoint(tmp_path / "a b", step)
    good = run_train(tmp_path, "import os; assert os.environ['WANDB_MODE'] == 'offline'")
    assert good.returncode == 0, good.stderr
    assert "Phase 1 SFT - Smoke Test\n  1 GPU, 10 steps" in good.stdout
    assert good.stdout.endswith("  [PASS] HF model checkpoint found\nSmoke test passed!\n")
    assert list(json.loads((tmp_path / "exports.json").read_text())) == ["5", "10"]
    assert run_train(tmp_path, "raise SystemExit(3)").returncode == 3
    (tmp_path / "a b/global_step_10/huggingface/config.json").unlink()
    bad = run_train(tmp_path, "")
    assert (bad.returncode, "[FAIL]" in bad.stderr, "passed" in bad.stdout) == (1, True, False)


def test_room_is_asked_for_before_anything_runs(tmp_path: Path) -> None:
    ended = run_train(tmp_path, "raise SystemExit(9)", "--billions", "1e9")
    assert ended.returncode == 1
    assert "2 checkpoints need" in ended.stderr


def test_the_corridor() -> None:
    good = [(step, value) for step, value in ((100, 1.0), (200, 0.6), (300, 0.4), (378, 0.3))]
    assert corridor.notes(good, [], []) == []
    assert corridor.notes([(100, 2.5)], [], [])[0].startswith("[WARN] train/loss near step 100 is 2.500")
    rising = corridor.notes(good, [(100, 1.2), (200, 0.9), (300, 1.4)], [])
    assert [line[:6] for line in rising] == ["[INFO]"]
    spike = corridor.notes([], [], [(step, 50.0 if step == 7 else 1.0) for step in range(10)])
    assert "50 times the median" in spike[0]


def test_a_flat_loss_is_said_unless_the_training_was_resumed() -> None:
    falling = [(step, 3 - step / 20) for step in range(1, 21)]
    level = [(step, 2.5) for step, _ in falling]
    assert corridor.flat(falling) == []
    assert corridor.flat(level)[0].startswith("[FAIL] train/loss does not fall within 20 steps: 2.500 to 2.500")
    assert corridor.flat([(step + 300, value) for step, value in level]) == []


def turns(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in pairs]


def test_raw_rows_become_conversations() -> None:
    both = turns(("user", "q"), ("assistant", "a"))
    assert data.conversation({"prompt": "q", "response": "a"}) == both
    assert data.conversation({"messages": both, "other": 1}) == both
    with pytest.raises(data.DataError, match="no question and answer"):
        data.conversation({"text": "x"})


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (turns(("user", "q"), ("assistant", "a")), ""),
        (turns(("user", "q")), "has the roles user"),
        (turns(("user", "q"), ("assistant", " ")), "has an empty answer"),
        ([], "is empty"),
    ],
)
def test_conversations_are_looked_at(found: list[dict[str, str]], problem: str) -> None:
    assert data.problem_of(found).startswith(problem)
    assert bool(data.problem_of(found)) == bool(problem)


def test_rows_are_counted_and_overlap_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: dict[str, list[Any]] = {
        data.TRAIN: [turns(("user", str(n)), ("assistant", "a")) for n in range(3)],
        data.VAL: [turns(("user", "9"), ("assistant", "a"))],
    }
    monkeypatch.setattr(data, "read_parquet", lambda path: parts[path.name])
    assert len(data.check(tmp_path, {data.TRAIN: 3, data.VAL: 0}, "", 10)) == 3
    (tmp_path / data.MAPPING).write_text(json.dumps({"train": [0, 1], "val": [2]}))
    for wanted, problem in (({data.TRAIN: 3, data.VAL: 1}, "names 2 rows"), ({data.TRAIN: 4, data.VAL: 1}, "not 4")):
        with pytest.raises(data.DataError, match=problem):
            data.check(tmp_path, wanted, "", 10)
    parts[data.VAL] = parts[data.TRAIN][:1]
    with pytest.raises(data.DataError, match=r"are in sft_train\.parquet and in sft_val\.parquet"):
        data.check(tmp_path, {data.TRAIN: 3, data.VAL: 1}, "", 10)


def export(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    weights(folder / "model.safetensors")
    return folder


def weights(path: Path, tail: bytes = b"\0\0\0\0", **more: Any) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}} | more).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + tail)


def test_what_an_export_lacks(tmp_path: Path) -> None:
    folder = export(tmp_path / "global_step_7/huggingface")
    found = checkpoints.one_checkpoint(folder.parent)
    assert (found.step, found.missing, found.export) == (7, "", folder)
    with pytest.raises(ValueError, match="is no global_step_N"):
        checkpoints.one_checkpoint(tmp_path)
    weights(folder / "model.safetensors", __metadata__={"format": "pt"})
    assert checkpoints.what_is_missing(folder) == ""
    for damage, problem in ((b"\0\0\0", "is cut"), (b"\0" * 5, "is cut")):
        weights(folder / "model.safetensors", damage)
        assert problem in checkpoints.what_is_missing(folder)
    for text in (b"\0" * 8, struct.pack("<Q", 101 << 20), b""):
        (folder / "model.safetensors").write_bytes(text)
        assert "is cut" in checkpoints.what_is_missing(folder)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{x")
    assert "is not a safetensors file" in checkpoints.what_is_missing(folder)
    (folder / "model.safetensors").unlink()
    assert "is missing" in checkpoints.what_is_missing(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "one", "b": "two"}}))
    weights(folder / "one")
    assert checkpoints.what_is_missing(folder) == f"{folder / 'two'} is missing"
    weights(folder / "two")
    assert checkpoints.what_is_missing(folder) == ""
    (folder / "tokenizer.json").unlink()
    assert checkpoints.what_is_missing(folder) == f"{folder}: no tokenizer"


def test_what_is_no_checkpoint_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "global_step_5x").mkdir()
    assert checkpoints.find_checkpoints(tmp_path) == []


def judged(step: int, **right: int) -> EvaluationResult:
    """Return a result in which so many of a suite's hundred problems are right, the first ones."""
    figures = {
        suite: {name: {str(n): [float(n < count)] for n in range(100)} for name in (ACCEPTED, EXECUTED)}
        for suite, count in right.items()
    }
    lock = EvaluationLock(parts={name: {} for name in LOCK_PARTS}, subject={})
    return EvaluationResult(name=f"step_{step}", step=step, lock=lock, scores={}, values=figures)


@pytest.mark.parametrize(
    ("name", "before", "after", "verdict"),
    [
        ("codecontests_valid", 10, 20, "ok"),
        ("codecontests_valid", 10, 19, "unsure"),
        ("codecontests_valid", 10, 10, "below"),
        ("mbpp_reg", 50, 50, "ok"),
        ("mbpp_reg", 50, 49, "ok"),
        ("mbpp_reg", 50, 30, "below"),
        ("humaneval", 50, 70, "ok"),
        ("humaneval", 50, 30, "below"),
    ],
)
def test_what_is_wanted_over_the_baseline(name: str, before: int, after: int, verdict: str) -> None:
    best, baseline = judged(5, **{name: after}), judged(-1, **{name: before})
    found = choose.compare(best, baseline)
    assert [each for each, line in found if line.startswith(name)] == [verdict]
    assert {line.split(": ")[1] for each, line in found if each == "unknown"} == {
        "this checkpoint was not judged on it"
    }
    told = dict(line[::-1] for line in choose.compare(best, judged(-1)))
    assert told[f"{name} accepted@1: the baseline was not judged on it"] == "unknown"


def args(**more: Any) -> Any:
    known = {"batch": 4, "gpus": 1, "micro_batch": 2, "rows": 8, "epochs": 1, "steps": 0, "save_every": 1}
    return SimpleNamespace(**known | {"billions": 0.0, "keep_optimizer": 0, "save": "optimizer"} | more)


def test_a_plan_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan.problem(args(), tmp_path) == ""
    assert "is not a multiple" in plan.problem(args(batch=3), tmp_path)
    monkeypatch.setattr(plan.shutil, "disk_usage", lambda folder: SimpleNamespace(free=32))
    assert plan.problem(args(billions=1e-9), tmp_path) == ""  # two checkpoints of 16 bytes
    assert "2 checkpoints need" in plan.problem(args(billions=2e-9), tmp_path)
    (tmp_path / "old").write_bytes(bytes(32))
    assert plan.problem(args(billions=2e-9), tmp_path) == ""


def test_data_are_split_once_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files: dict[str, list[Any]] = {}
    monkeypatch.setattr(data, "write_parquet", lambda path, rows: files.__setitem__(path.name, rows))
    monkeypatch.setattr(data, "read_parquet", lambda path: files[path.name])
    raw = tmp_path / "raw.jsonl"
    raw.write_text("".join(json.dumps({"prompt": str(n), "response": "a"}) + "\n\n" for n in range(10)))
    data.prepare(raw, tmp_path, 3, 0)
    assert (len(files[data.TRAIN]), len(files[data.VAL])) == (7, 3)
    told = json.loads((tmp_path / data.MAPPING).read_text())
    assert sorted(told["train"] + told["val"]) == list(range(10))
    facts = data.check(tmp_path, {data.TRAIN: 7, data.VAL: 3}, "", 10)
    assert facts == ["sft_train.parquet: 7 conversations, 0 twice", "sft_val.parquet: 3 conversations, 0 twice",
                     "split_mapping.json: fits"]  # fmt: skip
    files[data.TRAIN].append(files[data.TRAIN][0])
    (tmp_path / data.MAPPING).write_text('{"train": 3}')
    assert "8 conversations, 1 twice" in data.check(tmp_path, {data.TRAIN: 0, data.VAL: 0}, "", 10)[0]
    (tmp_path / data.MAPPING).unlink()
    assert "not there" in data.check(tmp_path, {data.TRAIN: 0, data.VAL: 0}, "", 10)[-1]
    files[data.VAL][1] = turns(("user", "q"))
    with pytest.raises(data.DataError, match=r"row 1 has the roles user.*\(1 such rows\)"):
        data.check(tmp_path, {data.TRAIN: 0, data.VAL: 0}, "", 10)
