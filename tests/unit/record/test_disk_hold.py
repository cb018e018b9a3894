"""The lock of a data disk has one holder, and goes with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlbox.errors import LockHeld, MachineError
from rlbox.record.disk_lock import LockOwner, acquire_disk_lock, find_lock_owner


def test_lock_is_held_by_whoever_inherited_its_file(tmp_path: Path) -> None:
    lock = acquire_disk_lock(tmp_path, LockOwner(run="r-1"))
    inherited = os.dup(lock.handle)
    lock.close_own_handle()
    assert find_lock_owner(tmp_path) == LockOwner(run="r-1")
    with pytest.raises(LockHeld):
        acquire_disk_lock(tmp_path, LockOwner(run="r-2"), 0.1)
    os.close(inherited)
    assert find_lock_owner(tmp_path) is None
    acquire_disk_lock(tmp_path, LockOwner(run="r-2"), 0.1).close_own_handle()


def test_disk_that_is_missing_cannot_be_locked(tmp_path: Path) -> None:
    assert find_lock_owner(tmp_path / "missing") is None
    with pytest.raises(MachineError, match="the data disk cannot be locked"):
        acquire_disk_lock(tmp_path / "missing", LockOwner())
