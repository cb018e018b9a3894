"""The lock of a data disk: one run at a time has it. The kernel drops it when its holders die, so none is ever stale.

The supervisor of a run holds it, in a container through the mount of the data disk: locks are on inodes. A command line
holds it while it starts a run or reconciles dead ones. What the file says counts only while somebody holds the lock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from rlbox.errors import LockHeld, MachineError, RlboxError
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.record.state import parse_json_as
from rlbox.system.file_lock import try_lock
from rlbox.system.safe_files import open_regular_fd

LOCK_FILE = ".rlbox-run.lock"
DISK_LOCK_TIMEOUT_S = 1.0
"""How long to try for the lock: whoever only looks at it holds it for an instant."""

_PAUSE_S = 0.02
_MODE = 0o666
"""Other users of the machine may run on the same disk: the file is theirs too."""


@dataclass(frozen=True, kw_only=True)
class LockOwner:
    """Who holds a data disk, since when (UTC) and for what; `run` is empty for a command line that looks after runs."""

    run: str = ""
    job: str = ""
    what: str = ""
    user: str = ""
    uid: int = -1
    host: str = ""
    since: str = ""


@dataclass(frozen=True)
class DiskLock:
    """A data disk that is held. Processes that inherit the open file hold it too, until the last of them is gone."""

    handle: int
    path: Path

    def try_write_owner(self, owner: LockOwner) -> None:
        text = json.dumps(dataclasses.asdict(owner), ensure_ascii=False).encode("utf-8", "replace")
        with contextlib.suppress(OSError):  # a disk too full for that is met elsewhere
            os.pwrite(self.handle, text, 0)
            os.ftruncate(self.handle, len(text))

    def close_own_handle(self) -> None:
        os.close(self.handle)


def acquire_disk_lock(data_dir: Path, owner: LockOwner, timeout_s: float = DISK_LOCK_TIMEOUT_S) -> DiskLock:
    """Raises `LockHeld` when another run holds it, `MachineError` when the file system of the disk cannot lock."""
    path = data_dir / LOCK_FILE
    handle = _open_lock_file(path)
    until = time.monotonic() + timeout_s
    try:
        while not _try_lock_file(handle, path):
            if time.monotonic() > until:
                raise create_lock_held_error(_read_owner(handle), path)
            time.sleep(_PAUSE_S)
    except RlboxError:
        os.close(handle)
        raise
    lock = DiskLock(handle, path)
    lock.try_write_owner(owner)
    return lock


def find_lock_owner(data_dir: Path) -> LockOwner | None:
    path = data_dir / LOCK_FILE
    try:
        handle = open_regular_fd(path)
    except OSError:
        return None
    try:
        return None if _try_lock_file(handle, path, shared=True) else _read_owner(handle)
    finally:
        os.close(handle)


def create_lock_held_error(owner: LockOwner, lock_path: Path) -> LockHeld:
    who = _("{user} (uid {uid}) on {host}").format(
        user=owner.user or "somebody", uid=owner.uid, host=owner.host or _("an unknown host")
    )
    if not owner.run:
        what = _("another rlbox is busy with the runs of this data disk: {what}, {who}").format(
            what=owner.what or _("unknown"), who=who
        )
        return LockHeld(
            _("{what}, since {since}").format(what=what, since=owner.since or "?"),
            where=str(lock_path),
            next_step=_("wait for it to end"),
        )
    return LockHeld(
        _("run {run} has the data disk: job {job}, started by {who}, since {since}").format(
            run=owner.run, job=owner.job, who=who, since=owner.since
        ),
        where=str(lock_path),
        next_step=_("rlbox attach {run}, or end it with: rlbox stop {run}").format(run=owner.run),
    )


def _open_lock_file(path: Path) -> int:
    handle, problem = -1, OSError()
    # in a sticky folder a file of another user may be opened, but not with O_CREAT (fs.protected_regular)
    for flags in (os.O_RDWR | os.O_CREAT, os.O_RDWR, os.O_RDONLY):
        try:
            handle = open_regular_fd(path, flags, _MODE)
            break
        except OSError as error:
            problem = error
            if error.errno in (errno.ELOOP, errno.EMLINK, errno.EINVAL):  # somebody else's file
                break
    if handle < 0:
        raise MachineError(
            _("the data disk cannot be locked: {strerror}").format(strerror=problem.strerror), where=str(path)
        ) from problem
    with contextlib.suppress(OSError):
        os.fchmod(handle, _MODE)
    return handle


def _try_lock_file(handle: int, path: Path, *, shared: bool = False) -> bool:
    try:
        return try_lock(handle, shared=shared)
    except OSError as error:
        raise MachineError(
            _("the file system of the data disk cannot lock files: {strerror}").format(strerror=error.strerror),
            where=str(path),
            next_step=_("mount it with locks (Lustre: -o flock), or name another disk with --data DIR"),
        ) from error


def _read_owner(handle: int) -> LockOwner:
    try:
        data = parse_untrusted_json(os.pread(handle, 1 << 16, 0))
    except (OSError, ValueError):
        data = None
    return parse_json_as(LockOwner, data) or LockOwner(what="no word about it")
