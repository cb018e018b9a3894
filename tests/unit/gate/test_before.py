"""Whether a stage wrote a file is told from what was there before."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rlbox.gate.files import FilesSnapshot, check_file_rule
from rlbox.job.gate import FileRule

AS_IT_WAS = "is as it was before the stage, which has not written it"


def problem(path: Path | str, work: Callable[[], object]) -> str:
    """Return what a rule that asks for a new file says after `work`."""
    rule = FileRule(path=str(path), min_bytes=1, newer=True)
    before = FilesSnapshot([rule.path])
    work()
    return check_file_rule(rule, lambda: None, earlier=before).problem


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file that an earlier run left long ago."""
    (tmp_path / "out").mkdir()
    path = tmp_path / "out/model.bin"
    path.write_bytes(b"weights")
    os.utime(path, (1, 1))
    return path


@pytest.mark.parametrize(
    "work", [lambda path: None, lambda path: path.chmod(0o600), lambda path: path.open("ab").close()]
)
def test_file_that_was_there_is_not_new(old: Path, work: Callable[[Path], object]) -> None:
    assert problem(old, lambda: work(old)) == AS_IT_WAS


def replace(path: Path) -> None:
    path.with_name("new").write_bytes(b"weights")
    os.utime(path.with_name("new"), (1, 1))  # an archive that is unpacked brings its times along
    os.replace(path.with_name("new"), path)


@pytest.mark.parametrize(
    "work", [lambda path: path.write_bytes(b"WEIGHTS"), lambda path: path.write_bytes(b"x"), replace]
)
def test_file_that_the_stage_wrote_is_new(old: Path, work: Callable[[Path], object]) -> None:
    assert problem(old, lambda: work(old)) == ""


def test_folder_is_judged_by_its_files(old: Path) -> None:
    folder = old.parent
    assert problem(folder, lambda: (folder / "empty").mkdir()) == "holds no file that the stage has written"
    assert problem(folder, lambda: (folder / "new").write_text("x")) == ""


def test_each_file_that_fits_must_be_new(old: Path) -> None:
    fresh = old.with_name("model-2.bin")
    found = problem(f"{old.parent}/model*.bin", lambda: fresh.write_text("x"))
    assert found == f"model.bin {AS_IT_WAS}"


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert problem(tmp_path / "pipe", lambda: None) == "is not a regular file"
