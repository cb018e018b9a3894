"""What the programs leave on disk: seeded data, checkpoints with a manifest, metrics."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pokerkit", reason="pokerkit needs Python 3.11")

from smoke import checkpoint, collect, deals, metrics, train
from smoke.decision import Spot, best_action, expected_values
from smoke.program import JobError
from smoke.servers import Sample


def make(folder: Path, seed: int) -> list[bytes]:
    deals.write(folder, seed=seed, train=24, evaluate=8, streets=("river",))
    return [(folder / name).read_bytes() for name in ("train.jsonl", "eval.jsonl")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    make(folder, 5)
    return folder


def test_same_seed_same_bytes_other_seed_other_bytes(tmp_path: Path, data: Path) -> None:
    again = make(tmp_path / "again", 5)
    assert again == [(data / name).read_bytes() for name in ("train.jsonl", "eval.jsonl")]
    assert make(tmp_path / "other", 6) != again


def test_train_and_eval_share_no_spot(data: Path) -> None:
    keys = [
        (frozenset(row["hole"]), frozenset(row["board"]))
        for name in ("train.jsonl", "eval.jsonl")
        for row in deals.read(data / name)
    ]
    assert len(keys) == len(set(keys)) == 32


def test_rows_state_what_is_true(data: Path) -> None:
    rows = deals.read(data / "train.jsonl")
    cases = Counter((Spot.from_json(row).legal, row["best"]) for row in rows)
    assert set(cases) == set(deals.CASES)
    assert max(cases.values()) - min(cases.values()) <= 1  # the cases take turns
    for row in rows:
        spot = Spot.from_json(row)
        assert row["best"] == best_action(expected_values(spot))
        assert row["equity"] == round(spot.equity, 6)
        assert row["prompt"].splitlines()[-1].split() == list(spot.legal)
        assert all(card in row["prompt"] for card in spot.hole + spot.board)


def test_missing_and_damaged_data_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"no data at .*train.jsonl; run `python -m smoke.deals"):
        deals.read(tmp_path / "train.jsonl")
    (tmp_path / "train.jsonl").write_text('{"hole": ["Ah"]}\n')
    with pytest.raises(JobError, match="is damaged"):
        deals.read(tmp_path / "train.jsonl")


def test_sft_answers_are_random_legal_actions(data: Path) -> None:
    rows = deals.read(data / "train.jsonl")
    pairs = train.examples(rows, 200, seed=1)
    assert pairs == train.examples(rows, 200, seed=1)
    best = 0
    for place, pair in enumerate(pairs):
        row = rows[place % len(rows)]
        action = pair["completion"][0]["content"].removeprefix("<action>").removesuffix("</action>")
        assert action in Spot.from_json(row).legal
        best += action == row["best"]
    assert 0.25 < best / 200 < 0.65


def test_loss_that_does_not_fall_fails() -> None:
    assert train.judge([6.0, 3.0, 0.6], 0.4).startswith("[train-only] passed: loss 6.0000 -> ")
    with pytest.raises(JobError, match=r"loss did not fall enough: loss 6.0000 -> 6.0000 \(0 % lower, 80 % wanted\)"):
        train.judge([6.0] * 9, 0.8)
    with pytest.raises(JobError, match="nan"):
        train.judge([6.0, float("nan")], 0.8)


def save(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    (folder / "model.safetensors").chmod(0o600)
    (folder / "sub").mkdir()
    (folder / "sub" / "config.json").write_text("{}")


def test_checkpoint_is_complete_and_readable(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    for _ in range(2):
        checkpoint.write(folder, save)
    checkpoint.verify(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert oct((folder / "model.safetensors").stat().st_mode)[-3:] == "644"
    manifest = json.loads((folder / "checkpoint.json").read_text())
    assert set(manifest["files"]) == {"model.safetensors", "sub/config.json"}


def test_a_failed_save_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    checkpoint.write(folder, save)

    def fail(part: Path) -> None:
        (part / "model.safetensors").write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoint.write(folder, fail)
    checkpoint.verify(folder)


def truncate(path: Path) -> None:
    os.truncate(path, 100)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[77] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "model.safetensors is truncated: 100 of 10240 bytes"),
        (flip, "model.safetensors has changed"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "has grown: 10241 of 10240 bytes"),
        (Path.unlink, "model.safetensors is missing"),
        (lambda path: (path.parent / "checkpoint.json").write_text("[]"), "is not a manifest"),
        (lambda path: (path.parent / "checkpoint.json").unlink(), "checkpoint.json is missing"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage, message: str) -> None:
    checkpoint.write(tmp_path / "checkpoint", save)
    damage(tmp_path / "checkpoint" / "model.safetensors")
    with pytest.raises(JobError, match=message):
        checkpoint.verify(tmp_path / "checkpoint")


def test_metrics_are_lines(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    metrics.Metrics(path, "train-only").add(step=1, loss=2.5)
    metrics.Metrics(path, "smoke").add(rollout=0, mean_reward=0.5)
    records = metrics.read(path)
    assert records == [
        {"stage": "train-only", "step": 1, "loss": 2.5},
        {"stage": "smoke", "rollout": 0, "mean_reward": 0.5},
    ]
    path.write_text("[]\n")
    with pytest.raises(JobError, match="without a stage"):
        metrics.read(path)


def test_summary_and_line() -> None:
    sample = Sample(text="", tokens=(), logprobs=(), prompt_tokens=())
    good = {"reward": 1.0, "action": "call", "legal": True, "best": "call"}
    bad = {"reward": -1.0, "action": None, "legal": False, "best": "fold"}
    scored = [collect.Scored(prompt="", sample=sample, score=score) for score in (good, bad)]
    facts = {**collect.summary(scored, 0.0), "seconds": 1.5}
    assert collect.line("rollout 0", facts) == (
        "[holdem][rollout 0] mean_reward=0.0 reward_std=1.0 well_formed=0.5 legal=0.5 best=0.5 samples=2 seconds=1.5"
    )
