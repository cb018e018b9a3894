"""Folders below a data disk, however deep: walked to a depth, removed whole, and no link leads out of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlbox.system.json_files import iter_tail_lines_or_raise, read_valid_json_from_tail_or_nothing
from rlbox.system.safe_files import MAX_DEPTH, remove_tree, walk_non_directories

pytestmark = pytest.mark.allow("processes")

MANY = 1200
"""Levels: more than Python lets a function call itself, in a path longer than the kernel takes."""


def nest(folder: Path, levels: int = MANY) -> None:
    folder.mkdir()
    at = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        with os.fdopen(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=at), "w"):
            os.mkdir("d", dir_fd=at)
        at, above = os.open("d", os.O_RDONLY, dir_fd=at), at
        os.close(above)
    os.close(at)


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A folder that is gone afterwards: what removes the folders of tests calls itself a level."""
    nest(tmp_path / "deep")
    yield tmp_path / "deep"
    remove_tree(tmp_path / "deep")


def test_a_deep_folder_is_walked_to_a_depth_and_removed_whole(deep: Path) -> None:
    assert len(list(walk_non_directories(deep))) == MAX_DEPTH + 1
    remove_tree(deep)
    assert list(deep.parent.iterdir()) == []


def test_links_are_told_and_not_followed(tmp_path: Path) -> None:
    disk, host = tmp_path / "disk", tmp_path / "host"
    for folder in (disk / "a", host):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    (disk / "a/round").symlink_to(".")
    (disk / "out").symlink_to(host)
    (disk / "one").symlink_to(host / "file")
    assert [name for name, _ in walk_non_directories(disk)] == ["one", "out", "a/file", "a/round"]
    assert list(walk_non_directories(disk / "out")) == list(walk_non_directories(disk / "missing")) == []
    with pytest.raises(OSError, match="it is a link"):
        remove_tree(disk / "out")
    remove_tree(disk)
    assert (disk.exists(), (host / "file").read_text()) == (False, "x")


@pytest.fixture
def no_root() -> Iterator[Path]:
    """A folder of a user who is not root."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        before = os.geteuid()
        os.seteuid(before or 65534)
        try:
            yield Path(folder)
        finally:
            os.seteuid(before)


def test_what_its_owner_may_not_write_goes_too(no_root: Path) -> None:
    (no_root / "shut/inner/last").mkdir(parents=True)
    (no_root / "shut/inner/file").write_text("x")
    for name in ("inner/last", "inner", "."):
        (no_root / "shut" / name).chmod(0)
    (no_root / "shut").chmod(0o700)
    remove_tree(no_root / "shut")
    assert list(no_root.iterdir()) == []


def test_of_a_file_without_end_its_end_is_read(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a": 3}\n')
    assert list(iter_tail_lines_or_raise(rows, 18)) == [b'{"a": 2}\n', b'{"a": 3}\n']
    assert list(iter_tail_lines_or_raise(rows, 17)) == [b'{"a": 3}\n']
    os.truncate(rows, 1 << 42)
    assert list(read_valid_json_from_tail_or_nothing(rows, 8 << 20)) == []
