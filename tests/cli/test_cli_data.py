"""`rlbox data` with a real interpreter: JSON Lines here, Parquet where pyarrow can be had."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import Folder, Rlbox, Said

pytestmark = pytest.mark.allow("processes")


def turn(number: int, answer: str = "yes") -> dict[str, Any]:
    asked = {"role": "user", "content": f"question {number}"}
    return {"messages": [asked, {"role": "assistant", "content": answer}]}


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def check(rlbox: Rlbox, *words: str) -> Said:
    return rlbox("data", "check", *words, "--python", sys.executable)


def test_good_data(rlbox: Rlbox, folder: Folder) -> None:
    folder.write("train.jsonl", lines(*map(turn, range(6))))
    folder.write("val.jsonl", lines(turn(100), turn(101)))
    words = ("train.jsonl", "--val", "val.jsonl", "--rows", "6", "--val-rows", "2")
    said = check(rlbox, *words)
    assert said.code == 0
    assert said.out == (
        "train: 6 rows, conversations in messages; columns: messages (list)\n"
        "val: 2 rows, conversations in messages; columns: messages (list)\n"
    )
    assert said.err == "data: nothing wrong\n"


def test_everything_that_is_wrong_is_said_at_once(rlbox: Rlbox, folder: Folder) -> None:
    bad = {"messages": [{"role": "user", "content": "only asked"}]}
    folder.write("train.jsonl", lines(turn(0), turn(0), turn(1), bad, turn(2, " "), {"messages": []}))
    folder.write("val.jsonl", lines(turn(1)))
    words = ("train.jsonl", "--val", "val.jsonl", "--rows", "7")
    said = check(rlbox, *words, "--json")
    assert said.code == 1
    assert said.data["problems"] == [
        "train: 6 rows, not 7",
        "train: 1 rows: it does not end with the assistant's answer (rows 3)",
        "train: 1 rows: a turn is empty (rows 4)",
        "train: 1 rows: no conversation: a list of role and content is needed (rows 5)",
        "1 rows are in train and in val (2 = 0): val/loss would be too good",
    ]
    assert said.data["notes"] == ["train: 1 rows are there twice"]


def test_data_for_rl(rlbox: Rlbox, folder: Folder) -> None:
    prompt = [{"role": "user", "content": "1 + 1?"}]
    good = {"prompt": prompt, "data_source": "x", "reward_model": {"style": "rule", "ground_truth": "2"}}
    folder.write("train.jsonl", lines(good, {**good, "reward_model": {}}))
    said = check(rlbox, "train.jsonl", "--json")
    assert said.data["problems"] == [
        "train: 1 rows: reward_model.ground_truth is missing, which the reward compares with (rows 1)"
    ]


def test_a_torn_file(rlbox: Rlbox, folder: Folder) -> None:
    folder.write("train.jsonl", lines(turn(0)) + '{"messages": [')
    said = check(rlbox, "train.jsonl", "--json")
    assert said.code == 1
    assert said.data["problems"][0].startswith("JSONDecodeError: ")


def test_a_tiny_set(rlbox: Rlbox, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("train.jsonl", lines(*map(turn, range(6))))
    words = ("data", "tiny", "train.jsonl", "--python", sys.executable)
    said = rlbox(*words)
    assert said.code == 2
    assert said.err.startswith("rlbox: error: it is not said where the tiny set goes\n  where: DATA_OUTPUT_DIR\n")
    monkeypatch.setenv("DATA_OUTPUT_DIR", str(folder.path / "out"))
    made = folder.path / "out/train_tiny.jsonl"
    refused = rlbox(*words)
    assert (refused.code, rlbox(*words, "--dry-run").code) == (5, 5)
    assert "the folder of this file does not exist" in refused.err
    made.parent.mkdir()
    assert rlbox(*words, "--dry-run").out.endswith(f"# verdict: this would write 2 rows of train.jsonl to {made}\n")
    assert not made.exists()
    said = rlbox(*words)
    assert (said.code, said.out) == (0, f"{made}\n")
    assert made.read_text() == lines(turn(0), turn(1))
    said = rlbox(*words, "--rows", "7")
    assert said.code == 1
    assert "no tiny set was made: it has 6 rows, not 7" in said.err
    assert made.read_text() == lines(turn(0), turn(1))


def test_an_interpreter_without_pyarrow(rlbox: Rlbox, folder: Folder) -> None:
    folder.write("train.parquet", "PAR1")
    said = check(rlbox, "train.parquet")
    assert said.code == 5
    assert "the interpreter cannot read the data: ModuleNotFoundError: No module named 'pyarrow'" in said.err


@pytest.mark.slow  # brings pyarrow
def test_parquet(rlbox: Rlbox, folder: Folder, tmp_path: Path) -> None:
    python = str(tmp_path / "venv/bin/python")
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv"], check=True)
    subprocess.run([*uv, "pip", "install", "--quiet", "--python", python, "pyarrow==21.0.0"], check=True)
    write = "import json, sys, pyarrow as a; from pyarrow import parquet as p; r = json.loads(sys.argv[1]); "
    write += "p.write_table(a.Table.from_pylist(r), 'train.parquet')"
    rows = [{**turn(number), "score": number / 2} for number in range(5)]
    subprocess.run([python, "-c", write, json.dumps(rows)], check=True)
    said = rlbox("data", "tiny", "train.parquet", "--output", "tiny.parquet", "--python", python)
    assert said.code == 0, said.err
    said = rlbox("data", "check", "tiny.parquet", "--val", "train.parquet", "--python", python, "--json")
    assert said.data["facts"][0].startswith("train: 2 rows, conversations in messages; columns: messages (list<")
    assert "score (double)" in said.data["facts"][0]
    assert said.data["facts"][0].partition("; ")[2] == said.data["facts"][1].partition("; ")[2]
    assert said.data["problems"] == ["2 rows are in train and in val (0 = 0, 1 = 1): val/loss would be too good"]
    folder.write("train.parquet", "PAR1 and torn")
    said = rlbox("data", "check", "train.parquet", "--python", python, "--json")
    assert said.data["problems"][0].startswith("ArrowInvalid: ")
