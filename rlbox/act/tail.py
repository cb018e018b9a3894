"""Read what a growing file has gained, in big blocks."""

from __future__ import annotations

import os
from pathlib import Path

BLOCK = 1 << 20
"""Bytes of one read; large enough that a fast writer is caught up with, small enough to stay flat in memory."""


class Tail:
    """Follows one file from its start; the file need not exist yet. One that shrank is read again from its start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = -1
        self._offset = 0

    def read(self) -> bytes:
        """Return the next bytes, at most `BLOCK`; empty when there is nothing new."""
        if self._handle < 0:
            try:
                self._handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return b""
        data = os.pread(self._handle, BLOCK, self._offset)
        if not data and os.fstat(self._handle).st_size < self._offset:
            self._offset = 0
            data = os.pread(self._handle, BLOCK, 0)
        self._offset += len(data)
        return data

    def close(self) -> None:
        """Let go of the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
