"""What a stage wrote is told from what was there, whatever times, modes, names and clocks say."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlbox.gate import files as module
from rlbox.gate.files import FileSnapshot, check_file
from rlbox.job.gate import FileRule
from rlbox.system import file_origin as origin

AS_IT_WAS = "is as it was before the stage, which has not written it"
TOMORROW = time.time() + 86400


def problem(path: Path | str, work: Callable[[], object]) -> str:
    """Return what a rule that asks for a new file says after `work`."""
    rule = FileRule(path=str(path), min_bytes=1, manifest=False, why="", newer=True)
    before = FileSnapshot([rule.path], lambda: None)
    work()
    try:
        return check_file(rule, lambda: None, earlier_snapshot=before).problem
    finally:
        before.close()


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file that an earlier run left."""
    (tmp_path / "out").mkdir()
    path = tmp_path / "out/model.bin"
    path.write_bytes(b"weights")
    return path


def renamed_over(path: Path) -> None:
    path.with_name("new").write_bytes(b"weights")
    os.replace(path.with_name("new"), path)


def made_anew(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"weights")


@pytest.mark.parametrize(
    "work",
    [
        lambda path: None,
        lambda path: os.utime(path, (TOMORROW, TOMORROW)),
        lambda path: path.touch(),
        lambda path: path.chmod(0o600),
        lambda path: path.open("ab").close(),
        lambda path: os.replace(path, path.with_name("moved")) or os.replace(path.with_name("moved"), path),
        lambda path: os.link(path, path.with_name("other")),
    ],
)
def test_what_was_there_is_not_written(old: Path, work: Callable[[Path], object]) -> None:
    assert problem(old, lambda: work(old)) == AS_IT_WAS


def test_a_time_of_tomorrow_makes_no_file_new(old: Path) -> None:
    os.utime(old, (TOMORROW, TOMORROW))
    assert problem(old, lambda: None) == AS_IT_WAS


@pytest.mark.parametrize(
    "work",
    [
        lambda path: path.write_bytes(b"other bytes"),
        lambda path: path.write_bytes(b"WEIGHTS"),
        lambda path: path.write_bytes(b"weights"),
        renamed_over,
        made_anew,
    ],
)
def test_what_the_stage_writes_is_new(old: Path, work: Callable[[Path], object]) -> None:
    def write() -> None:
        work(old)
        os.utime(old, (1, 1))  # an archive that is unpacked brings its times along

    assert problem(old, write) == ""


def test_an_old_file_under_a_new_name_is_old(old: Path, tmp_path: Path) -> None:
    words = "was made before the stage, which has not written it"
    assert problem(tmp_path / "link", lambda: os.link(old, tmp_path / "link")) == words
    assert problem(tmp_path / "moved", lambda: os.rename(old, tmp_path / "moved")) == words
    assert problem(tmp_path / "soft", lambda: (tmp_path / "soft").symlink_to(tmp_path / "moved")) == words


def test_a_clock_that_is_set_back_makes_no_file_old(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    born = 10**18
    clock = [born + 10, born - 10]  # before the stage, and after it
    monkeypatch.setattr(module, "read_file_system_clock", lambda folder: (folder.stat().st_dev, clock.pop(0)))
    monkeypatch.setattr("rlbox.system.file_origin.read_birth_ns", lambda path: born)
    assert problem(old.with_name("fresh"), lambda: old.with_name("fresh").write_bytes(b"x")) == ""


def test_without_births_a_second_name_is_no_proof(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlbox.system.file_origin.read_birth_ns", lambda path: 0)
    fresh, link = old.with_name("fresh"), old.with_name("link")
    assert problem(fresh, lambda: fresh.write_bytes(b"x")) == ""
    assert problem(link, lambda: os.link(old, link)) == "has another name, by which it may be older than the stage"


def test_a_link_to_another_disk_is_no_proof(old: Path) -> None:
    link = old.with_name("elsewhere")
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as other:
        other.write(b"x")
        other.flush()
        found = problem(link, lambda: link.symlink_to(other.name))
    assert found == "lies on another disk, where nothing was looked at before the stage"


def test_a_file_without_a_birth_is_old_where_others_have_one(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, fresh = origin.read_birth_ns, old.with_name("fresh")
    monkeypatch.setattr(origin, "read_birth_ns", lambda path: 0 if path == fresh else real(path))
    words = "was made before the stage, which has not written it"
    assert problem(fresh, lambda: fresh.write_bytes(b"x")) == words


def test_a_folder_is_judged_by_its_files(old: Path) -> None:
    folder = old.parent
    assert problem(folder, lambda: folder.touch()) == "holds no file that the stage has written"
    assert problem(folder, lambda: (folder / "empty").mkdir()) == "holds no file that the stage has written"
    assert problem(folder, lambda: (folder / "new").write_text("x")) == ""


def test_each_file_that_fits_must_be_new(old: Path) -> None:
    fresh = old.with_name("model-2.bin")
    found = problem(f"{old.parent}/model*.bin", lambda: fresh.write_text("x"))
    assert found == f"model.bin {AS_IT_WAS}"


def test_a_large_file_is_known_by_some_of_its_blocks(old: Path) -> None:
    size = 200 << 20
    with old.open("wb") as file:
        file.truncate(size)
        file.seek(size - 10)
        file.write(b"the end")

    def change() -> None:
        with old.open("r+b") as file:
            file.seek(size - 10)
            file.write(b"an end!")

    assert problem(old, lambda: None) == AS_IT_WAS
    assert problem(old, change) == ""


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert problem(tmp_path / "pipe", lambda: None) == "is no regular file"
