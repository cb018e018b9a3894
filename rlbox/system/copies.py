"""Checksums, links and whole files of a disk."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rlbox.amounts import size_text
from rlbox.errors import LockHeld, NodeError
from rlbox.system.folders import special_kind
from rlbox.system.lock import holder_of, lock_file
from rlbox.system.room import free_bytes

_BLOCK = 1 << 20


def sum_file(path: Path) -> str:
    """Return the sha256 of a file, hex."""
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
def whole_file(path: Path, need: int) -> Iterator[BinaryIO]:
    """Yield a file that becomes `path` when the block ends well, and is removed when it does not.

    Parameters
    ----------
    need
        Bytes that will be written, as far as is known.

    Raises
    ------
    NodeError
        The disk has less than `need` free, is full, or cannot be written.
    LockHeld
        Another process writes the same file.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        if kind := special_kind(path):
            raise OSError(errno.EINVAL, f"{kind} has this name, which is not replaced")
        free = free_bytes(path.parent)
        if free < need:
            raise NodeError(
                f"the disk is too full: {size_text(free)} free, {size_text(need)} needed",
                where=str(path.parent),
                next_step="free space, or name a file on another disk",
            )
        handle = lock_file(part, create=True)
        if handle is None:
            busy = f"another rlbox writes this archive: {holder_of(part)}"
            raise LockHeld(busy, where=str(part), next_step="wait for it to end")
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
        raise NodeError(
            f"the archive cannot be written: {error.strerror or error}",
            where=str(part),
            next_step="free space, or name a file on another disk",
        ) from error
