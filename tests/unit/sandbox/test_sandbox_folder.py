"""What a program's folder weighs, however it is filled."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlbox.sandbox.monitor import measure_disk_bytes_or_above_limit

PAGE = 4096
NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another user reaches, too."""
    top = Path(tempfile.mkdtemp())
    top.chmod(0o755)
    inner = top / "work"
    inner.mkdir()
    yield inner
    shutil.rmtree(top)


def test_all_folders_are_weighed_however_many_lie_side_by_side(folder: Path) -> None:
    for number in range(200):
        (folder / f"d{number}").mkdir()
        (folder / f"d{number}/file").write_bytes(b"x" * 4 * PAGE)
    assert measure_disk_bytes_or_above_limit(folder, [], 1 << 40) >= 200 * 4 * PAGE


def test_a_chain_of_folders_is_weighed_to_its_end(folder: Path) -> None:
    before, at = measure_disk_bytes_or_above_limit(folder, [], 1 << 40), folder
    for _ in range(300):
        at /= "d"
        at.mkdir()
    (at / "file").write_bytes(b"x" * 64 * PAGE)
    assert measure_disk_bytes_or_above_limit(folder, [], 1 << 40) - before >= 64 * PAGE


def test_too_many_entries_are_too_heavy(folder: Path) -> None:
    for number in range(10_001):
        (folder / f"f{number}").touch()
    assert measure_disk_bytes_or_above_limit(folder, [], 1 << 20) > 1 << 20


def test_a_folder_that_hides_what_is_in_it_is_too_heavy(folder: Path) -> None:
    """A program makes one that can be written into and not be listed: no mode is changed for that."""
    hidden = folder / "hidden"
    hidden.mkdir(0o300)
    (hidden / "file").write_bytes(b"x" * PAGE)
    own = os.geteuid()
    if own == 0:  # who may list everything
        for path in (folder, hidden):
            os.chown(path, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        assert measure_disk_bytes_or_above_limit(folder, [], 1 << 20) > 1 << 20
    finally:
        os.seteuid(own)
