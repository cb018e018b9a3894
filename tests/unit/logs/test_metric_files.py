"""Files of metrics: the recorded curves of real writers, complete, growing, torn and damaged."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from metricsbox import read_sources_with_equal_curves, unpack_curves

from rlbox.logs.metric_files import MetricFilesReader
from rlbox.logs.metric_names import find_key_of_metric_or_empty


def test_every_format_gives_the_same_curves(tmp_path: Path) -> None:
    unpack_curves(tmp_path)
    sources = ["verl", "wandb", *["tensorboard"] * 3, "trainer_state"]
    assert [source.partition(" ")[0] for source in read_sources_with_equal_curves(tmp_path)] == sources


@pytest.mark.parametrize("name", ["verl.jsonl", "tensorboardX/", "tensors/", ".wandb", "checkpoint-40"])
def test_a_file_cut_anywhere_is_read_later(tmp_path: Path, name: str) -> None:
    [path] = unpack_curves(tmp_path, name)
    data, reader, rows = path.read_bytes(), MetricFilesReader(tmp_path), []
    for cut in [*sorted(random.Random(7).sample(range(len(data)), 60)), len(data)]:
        path.write_bytes(data[:cut])
        rows += list(reader.read_new_rows())
    assert str(rows) == str(list(MetricFilesReader(tmp_path).read_new_rows()))
    assert len(read_sources_with_equal_curves(tmp_path)) == 1


@pytest.mark.parametrize("name", ["verl.jsonl", "torch", ".wandb", "checkpoint-40"])
def test_a_damaged_file_raises_nothing(tmp_path: Path, name: str) -> None:
    [path] = unpack_curves(tmp_path, name)
    data, chance = bytearray(path.read_bytes()), random.Random(8)
    for _ in range(200):
        data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data)
        list(MetricFilesReader(tmp_path).read_new_rows())


def test_a_row_has_step_time_and_stage_and_other_files_have_none(tmp_path: Path) -> None:
    row = {"stage": "sft", "rollout": 3, "time": 1.8e9, "reward": {"mean": 1}, "loss": None, "ok": True, "note": "x"}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + '\n{"torn')
    (tmp_path / "rollouts.jsonl").write_text('{"step": 1, "prompt": "x", "data": {"reward": 1.0}}\n')
    unpack_curves(tmp_path / "attempt-1")
    [found] = MetricFilesReader(tmp_path).read_new_rows()
    assert str(found.row)[12:] == "step=3, unix_s=1800000000.0, values={'reward.mean': 1.0, 'loss': nan}, stage='sft')"


def test_a_common_name_has_the_key_of_each_trainer() -> None:
    for key in ("critic/score/mean", "rewards/mean", "rollout/raw_reward", "train/reward"):
        assert find_key_of_metric_or_empty("reward", ("critic/rewards/mean", "train/return", key)) == key
