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
from rlbox.errors import MachineError
from rlbox.i18n import _
from rlbox.system.file_lock import create_lock_held_error, open_lock_unless_held
from rlbox.system.safe_files import replace_file


def cache_path(*names: str) -> Path:
    """Return a folder below `$XDG_CACHE_HOME/rlbox`; what is in it can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "rlbox", *names)


def state_path(*names: str) -> Path:
    """Return a folder below `$XDG_STATE_HOME/rlbox`: what this host knows, and no program of a run can write."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base, "rlbox", *names)


def write_atomic(path: Path, text: str | bytes, mode: int = 0o644) -> None:
    """Write a whole file or nothing, and the folders above it: readers see the old text or the new one.

    Raises OSError: it cannot be written, and is named; or what has its name is no regular file: devices, FIFOs, sockets
      and folders stay. A link to a regular file is replaced, not what it leads to.
    """
    if is_existing_non_regular_file(path):
        raise OSError(errno.EINVAL, "is no regular file, which is not replaced", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path.parent.resolve() / path.name, text.encode() if isinstance(text, str) else text, mode)


def is_existing_non_regular_file(path: Path) -> bool:
    if path.is_symlink() and str(path).startswith(("/dev/", "/proc/")):
        return True  # /dev/stdout, which may lead to a file
    return path.exists() and not path.is_file()


def free_bytes_or_0(path: Path) -> int:
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


def is_enospc_or_edquot(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


_BLOCK = 1 << 20


def compute_file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def hardlink_or_make_readonly_copy(source: Path, destination: Path) -> None:
    try:
        os.link(source, destination)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS):
            raise
        shutil.copyfile(source, destination)
        destination.chmod(0o444)


@contextmanager
def open_locked_atomic(path: Path, needed_free_bytes: int) -> Iterator[BinaryIO]:
    """Yield a file that becomes `path` when the block ends well, and is removed when it does not.

    Raises MachineError: the disk has less than `needed_bytes` free, is full, or cannot be written.
    Raises LockHeld: another process writes the same file.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        free = free_bytes_or_0(path.parent)
        if free < needed_free_bytes:
            raise MachineError(
                _("the disk is too full: {free} free, {need} needed").format(
                    free=decimal_size_text(free), need=decimal_size_text(needed_free_bytes)
                ),
                where=str(path.parent),
                next_step=_("free space, or name a file on another disk"),
            )
        handle = open_lock_unless_held(part, create_else_raise=True)
        if handle is None:
            raise create_lock_held_error(part, "archive")
        with os.fdopen(handle, "r+b") as file:
            file.truncate(0)
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.replace(part, path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise MachineError(
            _("the archive cannot be written: {strerror}").format(strerror=error.strerror or error),
            where=str(part),
            next_step=_("free space, or name a file on another disk"),
        ) from error


def require_replaceable_or_creatable_file(path: Path, option_in_hint: str) -> None:
    """Refuse a file that cannot be written or has no folder: a slip makes none. `option_in_hint`: as `--out`."""
    if is_existing_non_regular_file(path):
        raise MachineError(
            _("not a regular file; it is not replaced"),
            where=str(path),
            next_step=_("use another path: {option}").format(option=option_in_hint),
        )
    _require_writable_directory(path.absolute().parent, path, option_in_hint)


def require_writable_or_creatable_directory(folder: Path, option_in_hint: str) -> None:
    _require_writable_directory(folder if os.path.lexists(folder) else folder.absolute().parent, folder, option_in_hint)


def _require_writable_directory(directory: Path, path: Path, alternative: str) -> None:
    if not os.path.lexists(directory):
        raise MachineError(
            _("the folder of this file does not exist"),
            where=str(path),
            next_step=_("mkdir -p {parent}, or use another path: {option}").format(
                parent=shlex.quote(str(directory)), option=alternative
            ),
        )
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        raise MachineError(
            _("not a folder that this user can write to"),
            where=str(directory),
            next_step=_("make the folder writable for you, or use another path: {option}").format(option=alternative),
        )
