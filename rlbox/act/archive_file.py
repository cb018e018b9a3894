"""Write an archive that is whole or not there: a tar of blobs, under its final name only when all of it is on disk."""

from __future__ import annotations

import fcntl
import os
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rlbox.act.layers import Hashed
from rlbox.errors import LockHeld, NodeError
from rlbox.plan.archive import blob_name
from rlbox.plan.oci import Descriptor

_MODE = 0o444
_BLOCK = tarfile.BLOCKSIZE


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
        free = _free(path.parent)
        if free < need:
            raise NodeError(
                f"the disk is too full: {free / 1e9:.2f} GB free, {need / 1e9:.2f} GB needed",
                where=str(path.parent),
                next_step="free space, or name a file on another disk",
            )
        with os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
            _hold(file, part)
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


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _hold(file: BinaryIO, part: Path) -> None:
    """Lock the file, and make sure that it has not become the whole archive of another process meanwhile."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = os.path.samestat(os.fstat(file.fileno()), os.stat(part))
    except OSError:
        mine = False
    if not mine:
        raise LockHeld("another rlbox writes this archive", where=str(part), next_step="wait for it to end")


class ArchiveWriter:
    """Adds files to a tar: owner, mode and time are the same everywhere."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add(self, name: str, data: bytes) -> None:
        """Add a small file."""
        self._file.write(file_header(name, len(data)) + data)
        self._pad(len(data))

    def add_blob(self, digest: str, size: int, chunks: Iterable[bytes]) -> str:
        """Add a blob of known size, and return the digest that its bytes really have."""
        hashed = Hashed()
        self._file.write(file_header(blob_name(digest), size))
        for chunk in chunks:
            self._file.write(hashed.take(chunk))
        self._pad(hashed.size)
        return hashed.digest

    def add_unknown(self, chunks: Iterable[bytes], media_type: str) -> Descriptor:
        """Add a blob whose size and digest are known only at its end, and return what points to it."""
        start = self._file.tell()
        self._file.write(bytes(_BLOCK))
        hashed = Hashed()
        for chunk in chunks:
            self._file.write(hashed.take(chunk))
        self._pad(hashed.size)
        end = self._file.tell()
        self._file.seek(start)
        self._file.write(file_header(blob_name(hashed.digest), hashed.size))
        self._file.seek(end)
        return Descriptor(media_type=media_type, digest=hashed.digest, size=hashed.size)

    def finish(self) -> None:
        """Write the end of the tar."""
        self._file.write(bytes(2 * _BLOCK))

    def _pad(self, size: int) -> None:
        self._file.write(bytes(-size % _BLOCK))


def file_header(name: str, size: int) -> bytes:
    """Return the tar header of a plain file: root's, read-only, without a time."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, _MODE
    return info.tobuf(tarfile.GNU_FORMAT)
