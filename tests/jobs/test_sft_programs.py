"""The programs of `sft`, in this process: what they refuse, and each figure they reckon with."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sft import checkpoints, choose, data, plan

from rlbox.evaluation.lock import LOCK_PARTS, EvaluationLock
from rlbox.evaluation.result import ACCEPTED, EXECUTED, EvaluationResult

# --------------------------------------------------------------------------------------------------------- checkpoints


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
    assert "is no safetensors file" in checkpoints.what_is_missing(folder)
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


# ------------------------------------------------------------------------------------------------------------- results


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


# ------------------------------------------------------------------------------------------------------------ training


def args(**more: Any) -> Any:
    known = {"batch": 4, "gpus": 1, "micro_batch": 2, "rows": 8, "epochs": 1, "steps": 0, "save_every": 1}
    return SimpleNamespace(**known | {"billions": 0.0, "keep_optimizer": 0, "save": "optimizer"} | more)


def test_a_plan_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan.problem(args(), tmp_path) == ""
    assert "is no multiple" in plan.problem(args(batch=3), tmp_path)
    monkeypatch.setattr(plan.shutil, "disk_usage", lambda folder: SimpleNamespace(free=32))
    assert plan.problem(args(billions=1e-9), tmp_path) == ""  # two checkpoints of 16 bytes
    assert "2 checkpoints need" in plan.problem(args(billions=2e-9), tmp_path)
    (tmp_path / "old").write_bytes(bytes(32))
    assert plan.problem(args(billions=2e-9), tmp_path) == ""


# ---------------------------------------------------------------------------------------------------------------- data


def turns(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in pairs]


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
