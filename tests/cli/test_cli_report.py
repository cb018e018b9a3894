"""`rlbox report`: where the file goes, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import Folder, Rlbox
from reportbox import write_run


@pytest.fixture
def disk(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder.target("local")
    monkeypatch.setenv("RLBOX_DATA", str(tmp_path / "disk"))
    write_run(tmp_path / "disk/runs/holdem-1", samples=5, steps=5)
    return tmp_path / "disk"


def test_the_latest_run_into_the_working_folder(
    rlbox: Rlbox, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = rlbox("report")
    assert (said.code, said.out, said.err) == (0, "holdem-1.html\n", "")
    assert (tmp_path / "holdem-1.html").read_text().startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".holdem")] == []


def test_the_folder_of_a_run_from_elsewhere(rlbox: Rlbox, disk: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    (disk / "runs/holdem-1").rename(moved)
    (moved / "resources.jsonl").unlink()
    said = rlbox("report", str(moved), "--out", str(tmp_path / "x.html"))
    assert (said.code, said.err) == (0, "left out: resources.jsonl: missing\n")
    assert rlbox("report", str(moved), "-q", "--out", str(tmp_path / "x.html")).err == ""
