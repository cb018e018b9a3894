"""A device, FIFO, socket or folder is never replaced by a file that rlbox writes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rlbox.errors import MachineError
from rlbox.system.files import is_existing_non_regular_file, open_locked_atomic, write_atomic


@pytest.fixture
def targets(tmp_path: Path) -> list[Path]:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    os.mknod(tmp_path / "socket", stat.S_IFSOCK | 0o600)
    (tmp_path / "full").symlink_to("/dev/full")
    return [*(tmp_path / name for name in ("folder", "fifo", "socket", "full")), Path("/dev/null")]


def test_what_is_no_file_stays_what_it_is(targets: list[Path]) -> None:
    for path in targets:
        before = os.lstat(path)
        with pytest.raises(OSError, match="is no regular file, which is not replaced"):
            write_atomic(path, "x")
        after = os.lstat(path)
        assert (before.st_ino, stat.S_IFMT(before.st_mode)) == (after.st_ino, stat.S_IFMT(after.st_mode))


def test_links_of_the_system_are_special_wherever_they_lead() -> None:
    assert is_existing_non_regular_file(Path("/dev/stdout"))


def test_files_links_to_files_and_nothing_are_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "nowhere").symlink_to("missing/file")
    for name in ("file", "new", "link", "nowhere"):
        write_atomic(tmp_path / name, "new")
        assert (tmp_path / name).read_text() == "new"


@pytest.mark.parametrize("kind", ["link", "second name", "pipe", "device"])
def test_what_was_put_where_a_draft_is_expected_is_not_written_into(tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for draft in (tmp_path / f".out.{os.getpid()}", tmp_path / "out.part"):
        match kind:
            case "link":
                draft.symlink_to(victim)
            case "second name":
                os.link(victim, draft)
            case "pipe":
                os.mkfifo(draft)
            case _:
                draft.symlink_to("/dev/null")
    write_atomic(tmp_path / "out", "new")
    assert ((tmp_path / "out").read_text(), (tmp_path / "out").is_symlink()) == ("new", False)
    with pytest.raises(MachineError, match="cannot be written"), open_locked_atomic(tmp_path / "out", 0):
        pass
    assert victim.read_text() == "mine"
