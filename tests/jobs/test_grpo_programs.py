"""The programs of `grpo`: rows, files, and who gives or is asked for the proof."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from grpo import data


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
