"""Problems that stand in the training data: found in JSON lines and in real parquet, told in the result."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playbox import write_rows

from rlbox.evaluation.overlap.grams import Overlap, texts_of
from rlbox.evaluation.overlap.training_rows import find_overlap
from rlbox.evaluation.problem import Asking, EvalProblem, ProblemError, read_problems

TEXT = "count the {what} that a traveller meets between two towns when every third one of them turns back at noon"
THINGS = ("horses", "carts", "pilgrims", "geese")


@pytest.fixture
def problems() -> list[EvalProblem]:
    rows = [{"id": what, "question": TEXT.format(what=what), "answer": "1"} for what in THINGS]
    rows.append(
        {"id": "own", "question": "Each of nine " + "quiet sailors ropes a barrel to the mast " * 2, "answer": "2"}
    )
    rows.append({"id": "short", "question": "How?", "answer": "2"})
    return list(read_problems(iter(rows), Asking(judge="math", answer="{statement}")).values())


def found(problems: list[EvalProblem], *texts: str) -> list[str]:
    looked = Overlap({"s": problems})
    for text in texts:
        looked.read([text])
    return list(looked.of("s")["found"])


def test_what_is_asked_in_other_punctuation_is_found(problems: list[EvalProblem]) -> None:
    other = "Each of NINE quiet sailors; ropes a barrel\nto the mast, quiet sailors ropes a barrel …"
    assert found(problems, f"before {other} behind") == ["own"]


def test_what_most_problems_say_is_none_of_them(problems: list[EvalProblem]) -> None:
    assert found(problems, TEXT.format(what="mules")) == []
    assert found(problems, TEXT.format(what="carts")) == ["carts"]


def test_twelve_words_in_a_row_are_not_enough(problems: list[EvalProblem]) -> None:
    assert found(problems, "nine quiet sailors ropes a barrel to the mast quiet sailors ropes") == []
    assert found(problems, "nine quiet sailors ropes a barrel to the mast quiet sailors ropes a") == ["own"]


def test_what_cannot_be_told_is_counted(problems: list[EvalProblem]) -> None:
    looked = Overlap({"s": problems})
    assert (looked.of("s")["untold"], looked.of("s")["problems"]) == (1, 6)


def test_texts_lie_as_deep_as_they_like() -> None:
    row: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}, {"content": ["b", 3, None]}], "id": 5}
    assert list(texts_of(row)) == ["user", "a", "b"]


def test_packed_lines_are_read_and_named_by_content(tmp_path: Path, problems: list[EvalProblem]) -> None:
    path = tmp_path / "train.jsonl.gz"
    rows = [{"messages": [{"content": "hello"}]}, {"messages": [{"content": TEXT.format(what="geese")}]}]
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    told = find_overlap({"s": problems}, [path], "")["s"]
    assert (told["found"], told["rows"], told["words"]) == (["geese"], 2, 13)
    assert len(told["training"][0]["sha256"]) == 64
    with pytest.raises(ProblemError, match="is missing"):
        find_overlap({"s": problems}, [tmp_path / "none.jsonl"], "")
    with pytest.raises(ProblemError, match=r"none\.parquet is missing"):
        find_overlap({"s": problems}, [tmp_path / "none.parquet"], "")


def test_parquet_wants_an_interpreter_that_reads_it(tmp_path: Path, problems: list[EvalProblem]) -> None:
    (tmp_path / "train.parquet").write_bytes(b"PAR1")
    with pytest.raises(ProblemError, match=r"cannot be read with .*: ModuleNotFoundError: No module named 'pyarrow'"):
        find_overlap({"s": problems}, [tmp_path / "train.parquet"], "")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_parquet_is_read(tmp_path: Path, problems: list[EvalProblem]) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    subprocess.run([str(tmp_path / "venv/bin/pip"), "install", "-q", "pyarrow"], check=True)
    python = str(tmp_path / "venv/bin/python")
    write_rows(tmp_path / "rows.jsonl", [{"messages": [{"role": "user", "content": TEXT.format(what="carts")}]}] * 300)
    code = "import sys, json, pyarrow as a, pyarrow.parquet as p; "
    code += "p.write_table(a.Table.from_pylist([json.loads(l) for l in open(sys.argv[1])]), sys.argv[2])"
    subprocess.run([python, "-c", code, str(tmp_path / "rows.jsonl"), str(tmp_path / "train.parquet")], check=True)
    told = find_overlap({"s": problems}, [tmp_path / "train.parquet"], python)["s"]
    assert (told["found"], told["rows"]) == (["carts"], 300)
