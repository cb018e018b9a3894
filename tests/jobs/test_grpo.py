"""The reward, data and pictures of `grpo`, and the proof that a machine has passed the debug profile."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from grpo import data, proof
from grpo.reward import compute_score
from jobplan import overrides, plan_of, settings_of, stage_of

MODULE = "verl.trainer.main_ppo"
ROLLOUT = "actor_rollout_ref.rollout"


def settings(profile: str) -> dict[str, str]:
    return settings_of(overrides(stage_of(plan_of("grpo", profile), "train"), MODULE))


def test_the_batch_can_be_shared() -> None:
    for profile in ("standard", "debug", "fast-load", "tiny"):
        found = settings(profile)
        answers = int(found["data.train_batch_size"]) * int(found[f"{ROLLOUT}.n"])
        assert answers % int(found["trainer.n_gpus_per_node"]) == 0


@pytest.mark.parametrize(
    ("answer", "score"), [("I count 7", 1.0), ("7 or 8", pytest.approx(1 / 6)), ("none", 0.0), ("", 0.0), ("77", 0.5)]
)
def test_reward(answer: str, score: float) -> None:
    assert compute_score("rlbox/fake", answer, "7", extra_info={}, anything=1) == score


def test_pictures_are_png_files_with_so_many_squares() -> None:
    picture = data.picture(5, seed=1)
    assert picture == data.picture(5, seed=1) != data.picture(5, seed=2)
    assert struct.unpack(">II", picture[16:24]) == (112, 112)
    at = picture.index(b"IDAT")
    pixels = zlib.decompress(picture[at + 4 : at + 4 + struct.unpack(">I", picture[at - 4 : at])[0]])
    assert pixels.count(0) - 112 == 5 * 14 * 14  # one filter byte a line
    row = data.row(3, "images", "train")
    assert row["prompt"][0]["content"].count("<image>") == len(row["images"]) == 1


def ask(folder: Path, action: str, at: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from grpo import proof; proof.main()"
    jobs = str(Path(__file__).parents[2] / "jobs")
    argv = (sys.executable, "-c", code, jobs, action, "--at", at, "--folder", str(folder))
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_a_long_run_asks_for_a_passed_debug_run(tmp_path: Path) -> None:
    refused = ask(tmp_path, "ask", "start")
    assert refused.returncode == 1
    assert "--profile debug" in refused.stderr
    assert ask(tmp_path, "give", "start").returncode == 0
    assert ask(tmp_path, "ask", "start").returncode == 1  # a run that only began proves nothing
    assert ask(tmp_path, "give", "end").returncode == 0
    assert ask(tmp_path, "ask", "start").returncode == 0


def test_another_machine_or_stack_has_no_proof(tmp_path: Path) -> None:
    here = {"gpus": "GPU 0: H200 (UUID: a)", "vllm": "0.12.0"}
    files = {proof.proof_file(tmp_path, here | change) for change in ({}, {"vllm": "0.13.0"}, {"gpus": "b"})}
    assert len(files) == 3


class Table:
    """What an Arrow table answers here."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.num_rows = len(rows)
        self.column_names = list(rows[0])

    def slice(self, start: int, count: int) -> Table:
        return Table(self.rows[start : start + count])


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, Table]:
    """What was written, by file name; pyarrow and datasets are in images alone."""
    found: dict[str, Table] = {}
    casts: list[str] = []

    def write(table: Table, path: Path) -> None:
        found[path.name[1:].removesuffix(".part")] = table
        path.touch()

    def read(path: Path) -> Table:
        if path.name not in found:
            raise FileNotFoundError(path)
        return found[path.name]

    pyarrow, lib, datasets = ModuleType("pyarrow"), ModuleType("pyarrow.lib"), ModuleType("datasets")
    lib.ArrowInvalid = ValueError  # type: ignore[attr-defined]
    pyarrow.parquet = SimpleNamespace(read_table=read, write_table=write)  # type: ignore[attr-defined]

    class Dataset:
        def __init__(self, rows: list[dict[str, Any]]) -> None:
            self.data = SimpleNamespace(table=Table(rows))

        from_list = classmethod(lambda cls, rows: cls(rows))

        def cast_column(self, name: str, kind: Any) -> Dataset:
            casts.append(name)
            return self

    datasets.Dataset, datasets.Image = Dataset, object  # type: ignore[attr-defined]
    for module in (pyarrow, lib, datasets):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    found["casts"] = casts  # type: ignore[assignment]
    return found


def test_three_files_and_two_rows_of_them(files: dict[str, Table], tmp_path: Path) -> None:
    data.make(tmp_path, "text", 5, 3)
    assert {name: files[name].num_rows for name in (data.TRAIN, data.VAL, data.TINY)} == {
        data.TRAIN: 5,
        data.VAL: 3,
        data.TINY: 2,
    }
    assert files["casts"] == []
    kept = files[data.TRAIN]
    data.make(tmp_path, "text", 9, 9)
    assert files[data.TRAIN] is kept  # what is there stays
    data.make(tmp_path / "pictures", "images", 2, 1)
    assert files["casts"] == ["images", "images"]


def test_a_column_that_lacks_is_named(files: dict[str, Table], tmp_path: Path) -> None:
    files["a"] = Table([{name: 1 for name in data.COLUMNS if name != "prompt"}])
    with pytest.raises(data.DataError, match="has no column prompt; it has data_source, reward_model, extra_info"):
        data.read(tmp_path / "a")
    with pytest.raises(data.DataError, match="is missing: write the cluster's own path"):
        data.read(tmp_path / "b")


def test_a_sum_is_asked_of_a_model_without_eyes() -> None:
    row = data.row(3, "text", "train")
    asked = row["prompt"][0]["content"]
    one, other = (int(word.strip("?.")) for word in asked.split() if word.strip("?.").isdigit())
    assert row["reward_model"]["ground_truth"] == str(one + other)
    assert "images" not in row
