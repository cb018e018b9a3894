"""Read what a growing file has gained, in big blocks."""

from __future__ import annotations

import os
from pathlib import Path

BLOCK = 1 << 20
"""Bytes of one read; large enough that a fast writer is caught up with, small enough to stay flat in memory."""


class Tail:
    """Follows one file from its start, or from byte `start` on; the file need not exist yet.

    One that shrank is read again from its start; one that was renamed or removed is read to its end, then what has
    its name now.
    """

    def __init__(self, path: Path, start: int = 0) -> None:
        self._path = path
        self._start = start
        self._handle = -1
        self._offset = 0

    def read(self) -> bytes:
        """Return the next bytes, at most `BLOCK`; empty when there is nothing new."""
        if self._handle < 0 and not self._open():
            return b""
        data = os.pread(self._handle, BLOCK, self._offset)
        if not data and self._begins_again():
            data = os.pread(self._handle, BLOCK, 0)
        self._offset += len(data)
        return data

    def skip(self) -> None:
        """Leave out what the file holds by now."""
        if self._handle >= 0 or self._open():
            self._offset = os.fstat(self._handle).st_size

    def close(self) -> None:
        """Let go of the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _open(self) -> bool:
        try:
            self._handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        self._offset, self._start = self._start, 0
        return True

    def _begins_again(self) -> bool:
        """Return whether the file was emptied, or another one has its name."""
        own = os.fstat(self._handle)
        if own.st_size < self._offset:
            self._offset = 0
            return True
        try:
            if os.path.samestat(own, os.stat(self._path)):
                return False
        except FileNotFoundError:
            return False
        if os.pread(self._handle, 1, self._offset):
            return False  # written between the two looks; the rest of the old file comes first
        self.close()
        return self._open()
