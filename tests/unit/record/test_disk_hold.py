"""The hold of a data disk is on the disk itself: whatever becomes of the file in it, one holder has it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rlbox.errors import LockHeld, NodeError
from rlbox.record.disk_lock import LOCK_FILE, UNKNOWN_OWNER, LockOwner, acquire_disk_lock, find_lock_owner

REPLACED: dict[str, Callable[[Path], object]] = {
    "removed": lambda path: path.unlink(),
    "renamed": lambda path: path.rename(path.with_name("x")),
    "another file": lambda path: (path.unlink(), path.touch()),
    "a copy": lambda path: (path.rename(path.with_name("x")), path.write_bytes(path.with_name("x").read_bytes())),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("replace", REPLACED.values(), ids=REPLACED)
def test_another_file_in_its_place_lets_nobody_in(tmp_path: Path, replace: Callable[[Path], object]) -> None:
    hold = acquire_disk_lock(tmp_path, LockOwner(run="r-1"))
    replace(tmp_path / LOCK_FILE)
    assert find_lock_owner(tmp_path) in (LockOwner(what=UNKNOWN_OWNER), LockOwner(run="r-1"))
    with pytest.raises(LockHeld):
        acquire_disk_lock(tmp_path, LockOwner(run="r-2"), 0.1)
    hold.release()
    assert find_lock_owner(tmp_path) is None


def test_who_inherited_one_of_its_files_holds_it_too(tmp_path: Path) -> None:
    hold = acquire_disk_lock(tmp_path, LockOwner(run="r-1"))
    kept = [os.dup(handle) for handle in hold.handles]
    hold.release()
    for handle in kept:
        with pytest.raises(LockHeld):
            acquire_disk_lock(tmp_path, LockOwner(run="r-2"), 0.1)
        os.close(handle)
    acquire_disk_lock(tmp_path, LockOwner(run="r-2"), 0.1).release()


def test_where_folders_cannot_be_locked_the_file_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlbox.record import disk_lock as disk_hold

    real = disk_hold.try_lock

    def refuse(handle: int, *, shared: bool = False) -> bool:
        if os.path.samestat(os.fstat(handle), tmp_path.stat()):
            raise OSError("no locks on folders here")
        return real(handle, shared=shared)

    monkeypatch.setattr(disk_hold, "try_lock", refuse)
    hold = acquire_disk_lock(tmp_path, LockOwner(run="r-1"))
    with pytest.raises(LockHeld):
        acquire_disk_lock(tmp_path, LockOwner(run="r-2"), 0.1)
    assert find_lock_owner(tmp_path) == LockOwner(run="r-1")
    hold.release()


def test_a_disk_that_is_none(tmp_path: Path) -> None:
    assert find_lock_owner(tmp_path / "missing") is None
    with pytest.raises(NodeError, match="the data disk cannot be locked"):
        acquire_disk_lock(tmp_path / "missing", LockOwner())
