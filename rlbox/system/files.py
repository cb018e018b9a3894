"""rlbox's own directories, files that are written complete or not at all, and free space."""

from __future__ import annotations

import errno
import hashlib
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rlbox.amounts import decimal_size_text
from rlbox.errors import LockHeld, NodeError
from rlbox.i18n import _
from rlbox.system.file_lock import describe_lock_holder_or_unknown, open_lock_unless_held
from rlbox.system.safe_files import NEW_FILE_FLAGS


def cache_path(*names: str) -> Path:
    """Return a folder below `$XDG_CACHE_HOME/rlbox`; what is in it can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "rlbox", *names)


def state_path(*names: str) -> Path:
    """Return a folder below `$XDG_STATE_HOME/rlbox`: what this host knows, and no program of a run can write."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base, "rlbox", *names)


def write_atomic(path: Path, text: str | bytes, mode: int = 0o644) -> None:
    """Write a whole file or nothing: readers see the old text or the new one.

    Raises
    ------
    OSError
        It cannot be written, and is named; or what has its name is no regular file: devices, FIFOs, sockets and
        folders stay. A link to a regular file is replaced, not what it leads to.
    """
    if is_folder_device_or_pipe(path):
        raise OSError(errno.EINVAL, "is no regular file, which is not replaced", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(draft, NEW_FILE_FLAGS, mode), "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
            os.fchmod(file.fileno(), mode)
        os.replace(draft, path)
    except OSError as error:
        error.filename = error.filename or str(path)  # that of a write names none
        raise
    finally:
        draft.unlink(missing_ok=True)


def is_folder_device_or_pipe(path: Path) -> bool:
    """Whether a device, FIFO, socket or folder stands at a path, links followed: what no file may replace."""
    if path.is_symlink() and str(path).startswith(("/dev/", "/proc/")):
        return True  # /dev/stdout, which may lead to a file
    return path.exists() and not path.is_file()


def write_if_changed(path: Path, text: str) -> bool:
    data = text.encode()
    try:
        if path.read_bytes() == data:
            return False
    except OSError:
        pass
    write_atomic(path, data)
    return True


def get_free_bytes(path: Path) -> int:
    """Return what an unprivileged process may still write where `path` is, or would be; 0 when that cannot be told."""
    for folder in (path, *path.parents):
        try:
            facts = os.statvfs(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return 0
        return facts.f_bavail * facts.f_frsize
    return 0


def is_disk_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


_BLOCK = 1 << 20


def compute_file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def link_or_copy(source: Path, path: Path) -> None:
    """Make `path` a hard link of `source`, a read-only copy where the file system has no such link."""
    try:
        os.link(source, path)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS):
            raise
        shutil.copyfile(source, path)
        path.chmod(0o444)


@contextmanager
def open_atomic(path: Path, needed_bytes: int) -> Iterator[BinaryIO]:
    """Yield a file that becomes `path` when the block ends well, and is removed when it does not.

    Parameters
    ----------
    needed_bytes
        Bytes that will be written, as far as is known.

    Raises
    ------
    NodeError
        The disk has less than `needed_bytes` free, is full, or cannot be written; other errors of the block stay.
    LockHeld
        Another process writes the same file.
    """
    part = path.with_name(f"{path.name}.part")
    is_in_block = False
    try:
        if is_folder_device_or_pipe(path):
            raise OSError(errno.EINVAL, "is no regular file, which is not replaced")
        free = get_free_bytes(path.parent)
        if free < needed_bytes:
            raise NodeError(
                _("the disk is too full: {free} free, {need} needed").format(
                    free=decimal_size_text(free), need=decimal_size_text(needed_bytes)
                ),
                where=str(path.parent),
                next_step=_("free space, or name a file on another disk"),
            )
        handle = open_lock_unless_held(part, create_else_raise=True)
        if handle is None:
            busy = _("another rlbox writes this archive: {describe_lock_holder}").format(
                describe_lock_holder=describe_lock_holder_or_unknown(part)
            )
            raise LockHeld(busy, where=str(part), next_step=_("wait for it to end"))
        with os.fdopen(handle, "r+b") as file:
            file.truncate(0)
            try:
                is_in_block = True
                yield file
                is_in_block = False
                file.flush()
                os.fsync(file.fileno())
                os.replace(part, path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
    except OSError as error:
        can_be_of_this_file = is_disk_full(error) or error.errno == errno.EFBIG  # a write without room names no file
        if is_in_block and not can_be_of_this_file:
            raise
        raise NodeError(
            _("the archive cannot be written: {strerror}").format(strerror=error.strerror or error),
            where=str(part),
            next_step=_("free space, or name a file on another disk"),
        ) from error


def require_writable_file(path: Path, alternative: str) -> None:
    """Refuse a file that cannot be written: its folder is there, a slip makes none.

    Parameters
    ----------
    alternative
        How another is named: `another with --out`, `another FILE`.

    Raises
    ------
    NodeError
        The folder is missing, or no folder, or not this user's to write in; or no regular file has the name.
    """
    if is_folder_device_or_pipe(path):
        raise NodeError(
            _("no regular file has this name, and it is not replaced"),
            where=str(path),
            next_step=_("name {other}").format(other=alternative),
        )
    _check_parent(path, alternative)


def require_writable_or_creatable_directory(folder: Path, alternative: str) -> None:
    """Refuse a folder that can neither be made, in one that is there, nor be written in; as `require_writable_file`."""
    if not os.path.lexists(folder):
        _check_parent(folder, alternative)
    elif not folder.is_dir():
        raise NodeError(
            _("no folder has this name"), where=str(folder), next_step=_("name {other}").format(other=alternative)
        )
    else:
        _check_writable(folder, alternative)


def _check_parent(path: Path, other: str) -> None:
    parent = path.absolute().parent
    if parent.is_dir():
        _check_writable(parent, other)
        return
    if any(os.path.lexists(one) and not one.is_dir() for one in (parent, *parent.parents)):
        raise NodeError(
            _("its parent is not a folder"), where=str(path), next_step=_("name {other}").format(other=other)
        )
    raise NodeError(
        _("the folder of this is not there"),
        where=str(path),
        next_step=_("mkdir -p {parent}, or name {other}").format(parent=shlex.quote(str(parent)), other=other),
    )


def _check_writable(folder: Path, other: str) -> None:
    if os.statvfs(folder).f_flag & os.ST_RDONLY or not os.access(folder, os.W_OK | os.X_OK):
        raise NodeError(
            _("nothing can be written there by this user"),
            where=str(folder),
            next_step=_("make the folder writable for you, or name {other}").format(other=other),
        )
