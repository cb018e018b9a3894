"""Write an archive that is whole or not there: a tar of blobs, under its final name only when all of it is on disk."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable
from typing import BinaryIO

from rlbox.engine.archive_parts import blob_name
from rlbox.engine.oci import Descriptor
from rlbox.system.compression import DigestCounter

_MODE = 0o444
_BLOCK = tarfile.BLOCKSIZE


class ArchiveWriter:
    """Adds files to a tar: owner, mode and time are the same everywhere."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add(self, name: str, data: bytes) -> None:
        self._file.write(file_header(name, len(data)) + data)
        self._pad(len(data))

    def add_unknown(self, chunks: Iterable[bytes], media_type: str) -> Descriptor:
        """Add a blob whose size and digest are known only at its end, and return what points to it."""
        start = self._file.tell()
        self._file.write(bytes(_BLOCK))
        hashed = DigestCounter()
        for chunk in chunks:
            self._file.write(hashed.take(chunk))
        self._pad(hashed.size)
        end = self._file.tell()
        self._file.seek(start)
        self._file.write(file_header(blob_name(hashed.digest), hashed.size))
        self._file.seek(end)
        return Descriptor(media_type=media_type, digest=hashed.digest, size=hashed.size)

    def finish(self) -> None:
        self._file.write(bytes(2 * _BLOCK))

    def _pad(self, size: int) -> None:
        self._file.write(bytes(-size % _BLOCK))


def file_header(name: str, size: int) -> bytes:
    """Return the tar header of a plain file: root's, read-only, without a time."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, _MODE
    return info.tobuf(tarfile.GNU_FORMAT)
