"""The ends of files: what a growing one has gained, its last bytes, and where its last lines begin."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rlbox.system.json_files import iter_tail_lines_or_raise
from rlbox.system.safe_files import open_regular_fd, open_regular_file

BLOCK = 1 << 20
"""Bytes of one read; large enough that a fast writer is caught up with, small enough to stay flat in memory."""

STEP = 64 * 1024
FORWARD_LIMIT = 64 << 20
"""Bytes of a step from line to line, and how far one is looked for."""

_BACK_LIMIT = 8 << 20
_LINE_END = re.compile(rb"\r+\n?|\n")


def read_tail_lines_or_empty(path: Path, max_bytes: int) -> bytes:
    """Return the last `max_bytes` of a file, without the line that they begin in; empty when it cannot be read."""
    try:
        return b"".join(iter_tail_lines_or_raise(path, max_bytes))
    except OSError:
        return b""


def find_last_lines_offset(path: Path, lines: int) -> int:
    """Return where the last `lines` lines of a file begin; a carriage return begins a line, too."""
    with open_regular_file(path) as file:
        end = file.seek(0, os.SEEK_END)
        if not lines:
            return end
        start = find_offset_lines_before(file, end, lines)[0]
        file.seek(start)
        begins = [found.end() for found in _LINE_END.finditer(file.read(end - start))]
    if begins and start + begins[-1] == end:
        begins.pop()
    return start + begins[-lines] if len(begins) >= lines else start


def find_offset_lines_after(file: BinaryIO, offset: int, lines: int) -> int:
    file.seek(offset)
    read = 0
    while lines > 0 and read < FORWARD_LIMIT and (block := file.read(STEP)):
        count = block.count(b"\n")
        if count < lines:
            lines -= count
            read += len(block)
            continue
        at = -1
        for _ in range(lines):
            at = block.index(b"\n", at + 1)
        return offset + read + at + 1
    return offset + read


class LinePosition(NamedTuple):
    offset: int
    lines_stepped_back: int


def find_offset_lines_before(file: BinaryIO, offset: int, lines: int) -> LinePosition:
    start, found = offset, 0
    limit = max(0, offset - _BACK_LIMIT)
    while start > limit:
        low = max(limit, start - STEP)
        file.seek(low)
        block = file.read(start - low)
        at = len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            if low + at + 1 == offset:
                continue  # the end of the line above, which is not counted yet
            found += 1
            if found == lines:
                return LinePosition(low + at + 1, lines)
        start = low
    if start == 0:
        return LinePosition(0, found + 1 if offset else 0)
    return LinePosition(find_offset_lines_after(file, start, 1), found)


class FileFollower:
    """Follows one file from its start, or from byte `start` on; the file need not exist yet.

    One that shrank is read again from its start; one that was renamed or removed is read to its end, then what has
    its name now. `follow_links`: as on the way to a log of Ray's.
    """

    def __init__(self, path: Path, start: int = 0, *, follow_links: bool = False) -> None:
        self._path = path
        self._links = follow_links
        self._start = start
        self._handle = -1
        self._offset = 0

    def read_next_block_or_empty(self) -> bytes:
        """Return the next bytes, at most `BLOCK`; empty when there is nothing new."""
        if self._handle < 0 and not self._open():
            return b""
        data = os.pread(self._handle, BLOCK, self._offset)
        if not data and self._begins_again():
            data = os.pread(self._handle, BLOCK, 0)
        self._offset += len(data)
        if len(data) == BLOCK and not data.strip(b"\0"):
            self._skip_hole()
        return data

    def _skip_hole(self) -> None:
        """Go on at the next data: a log that was truncated under its writer begins with a hole of the old length."""
        try:
            self._offset = os.lseek(self._handle, self._offset, os.SEEK_DATA)
        except OSError:  # nothing behind this place, or a file system that does not tell
            self._offset = max(self._offset, os.fstat(self._handle).st_size)

    def skip_to_end(self) -> None:
        if self._handle >= 0 or self._open():
            self._offset = os.fstat(self._handle).st_size

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _open(self) -> bool:
        try:
            self._handle = open_regular_fd(self._path, follow_links=self._links)
        except FileNotFoundError:
            return False
        self._offset, self._start = self._start, 0
        return True

    def _begins_again(self) -> bool:
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
