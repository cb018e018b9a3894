"""The hold of a data disk: one run at a time has it. The kernel drops it when its holders die, so none is ever stale.

The supervisor of a run holds it, in a container through the mount of the data disk: locks are on inodes. A command line
holds it for the moments in which it starts a run or settles dead ones. Two things are locked: the folder that is the
disk, in whose place no program of a run can put another, and a file in it, for that file systems of several machines
lock files at most. What the file says (who, since when, what) counts only while somebody holds the disk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlbox.errors import LockHeld, NodeError
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.record.kinds import as_kind
from rlbox.system.lock import try_lock
from rlbox.system.safe_files import open_regular_fd

LOCK_FILE = ".rlbox-run.lock"
SETTLE_S = 1.0
"""How long to try for the lock: whoever only looks at it holds it for an instant."""

NO_WORD = "no word about it"
"""What is said of a disk that is held, and of which the file does not say by whom."""

_PAUSE_S = 0.02
_MODE = 0o666
"""Other users of the machine may run on the same disk: the file is theirs too."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds a data disk, since when (UTC) and for what; `run` is empty for a command line that looks after runs."""

    run: str = ""
    job: str = ""
    what: str = ""
    user: str = ""
    uid: int = -1
    host: str = ""
    since: str = ""


class DiskHold:
    """A data disk that is held. Processes that inherit the open files hold it too, until the last of them is gone."""

    def __init__(self, folder: int, handle: int, path: Path) -> None:
        self.handles = (folder, handle)
        self.path = path

    def tell(self, holder: Holder) -> None:
        """Write down who holds it; a disk too full for that is met elsewhere."""
        text = json.dumps(dataclasses.asdict(holder), ensure_ascii=False).encode("utf-8", "replace")
        with contextlib.suppress(OSError):
            os.pwrite(self.handles[1], text, 0)
            os.ftruncate(self.handles[1], len(text))

    def leave(self) -> None:
        """Let go of it here; a process that inherited it goes on holding it."""
        for handle in self.handles:
            os.close(handle)


def take_disk(
    data: Path, holder: Holder, patience_s: float = SETTLE_S, stage_of: Callable[[str], str] = lambda run: ""
) -> DiskHold:
    """Return the hold of the data disk `data`, taken for `holder`.

    Parameters
    ----------
    stage_of
        From a run's id to the stage it is at, for the message.

    Raises
    ------
    LockHeld
        Another run holds it; the message says whose it is, since when, and what it does.
    NodeError
        The file system of the disk cannot lock.
    """
    path = data / LOCK_FILE
    until = time.monotonic() + patience_s
    while (hold := _taken(data, path)) is None:
        if time.monotonic() > until:
            other = _told(path)
            raise held_by(other, path, stage_of(other.run) if other.run else "")
        time.sleep(_PAUSE_S)
    hold.tell(holder)
    return hold


def _taken(data: Path, path: Path) -> DiskHold | None:
    """Return the hold of a disk that nobody has; None when somebody does."""
    with contextlib.ExitStack() as opened:
        folder = _open_disk(data)
        opened.callback(os.close, folder)
        if not _folder_locked(folder):
            return None
        handle = _open(path)
        opened.callback(os.close, handle)
        if not _locked(handle, path) or not _is_at(handle, path):  # another file has its name by now
            return None
        opened.pop_all()
        return DiskHold(folder, handle, path)


def disk_holder(data: Path) -> Holder | None:
    """Return who holds the data disk now, or None."""
    path = data / LOCK_FILE
    try:
        folder = _open_disk(data)
    except NodeError:
        return None
    try:
        if not _folder_locked(folder, shared=True):
            return _told(path)
    finally:
        os.close(folder)
    try:
        handle = open_regular_fd(path)
    except OSError:
        return None
    try:
        return None if _locked(handle, path, shared=True) else _read(handle)
    finally:
        os.close(handle)


def held_by(holder: Holder, path: Path, stage: str = "") -> LockHeld:
    """Return the error for a disk that another one holds."""
    who = _("{user} (uid {uid}) on {host}").format(
        user=holder.user or "somebody", uid=holder.uid, host=holder.host or _("an unknown host")
    )
    if not holder.run:
        what = _("another rlbox is busy with the runs of this data disk: {what}, {who}").format(
            what=holder.what or _("unknown"), who=who
        )
        return LockHeld(
            _("{what}, since {since}").format(what=what, since=holder.since or "?"),
            where=str(path),
            next_step=_("wait for it to end"),
        )
    doing = _("job {job}{stage}").format(
        job=holder.job, stage=_(", stage {stage}").format(stage=stage) if stage else ""
    )
    return LockHeld(
        _("run {run} has the data disk: {doing}, started by {who}, since {since}").format(
            run=holder.run, doing=doing, who=who, since=holder.since
        ),
        where=str(path),
        next_step=_("rlbox attach {run}, or end it with: rlbox stop {run}").format(run=holder.run),
    )


def _open(path: Path) -> int:
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
        raise NodeError(
            _("the data disk cannot be locked: {strerror}").format(strerror=problem.strerror), where=str(path)
        ) from problem
    with contextlib.suppress(OSError):
        os.fchmod(handle, _MODE)
    return handle


def _open_disk(data: Path) -> int:
    try:
        return os.open(data, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise NodeError(
            _("the data disk cannot be locked: {strerror}").format(strerror=error.strerror), where=str(data)
        ) from error


def _folder_locked(folder: int, *, shared: bool = False) -> bool:
    """Lock the folder of a disk; where its file system cannot, the file alone tells."""
    try:
        return try_lock(folder, shared=shared)
    except OSError:
        return True


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except OSError:
        return False


def _locked(handle: int, path: Path, *, shared: bool = False) -> bool:
    try:
        return try_lock(handle, shared=shared)
    except OSError as error:
        raise NodeError(
            _("the file system of the data disk cannot lock files: {strerror}").format(strerror=error.strerror),
            where=str(path),
            next_step=_("mount it with locks (Lustre: -o flock), or name another disk with --data DIR"),
        ) from error


def _told(path: Path) -> Holder:
    try:
        handle = open_regular_fd(path)
    except OSError:
        return Holder(what=NO_WORD)
    try:
        return _read(handle)
    finally:
        os.close(handle)


def _read(handle: int) -> Holder:
    try:
        data = parse_json(os.pread(handle, 1 << 16, 0))
    except (OSError, ValueError):
        data = None
    return as_kind(Holder, data) or Holder(what=NO_WORD)
