"""Look through a large log on all cores for how far it says nothing that a diagnosis would read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlbox.diagnose.act.read import LogReader
from rlbox.diagnose.act.scanner import Scanner, WholeLines
from rlbox.diagnose.act.sources import Source, read_blocks
from rlbox.diagnose.read.reader import EventReader
from rlbox.diagnose.read.recurring import LINES
from rlbox.diagnose.read.spoken import BEGINNING
from rlbox.logs.lines import block_of
from rlbox.machine.act.limits import usable_cores

LEAST = 64 << 20
"""Bytes of a log that is looked through so: of a smaller one the start of the processes costs what they save."""
_PIECE = 8 << 20

Mark = tuple[int, int]
"""The byte behind a whole line, and how many lines stand before it."""


def pass_quiet(source: Source, reader: LogReader, scanner: Scanner) -> None:
    """Read the beginning of a log, and pass over what holds nothing; what comes behind it is for the caller to read.

    Passed over is what ends `LINES` lines before the first line that was found, or before the end. A log that is read
    as one of several is read whole: its signs of work are compared with those of the others.
    """
    size = 0 if source.path is None or source.member else _size(source.path)
    if size < LEAST or usable_cores() < 2 or not reader.is_idle:
        return
    marks = list(_marks(source, size, scanner))
    first = next((mark for mark in marks if mark[0] >= BEGINNING), None)
    last = next((mark for mark in reversed(marks[:-1]) if mark[1] + LINES <= marks[-1][1]), None)
    if not first or not last or last <= first:
        return
    for block in _between(source, 0, first[0]):
        reader.take(block)
    if reader.is_idle:
        reader.pass_over(last[0] - first[0], last[1] - first[1])


def _marks(source: Source, size: int, scanner: Scanner) -> Iterator[Mark]:
    """Yield the ends of the blocks of a log up to the first in which something was found, or up to its last line."""
    from rlbox.machine.act.command import on_all_cores

    pieces = [(begin, min(begin + _PIECE, size)) for begin in range(0, size, _PIECE)]
    lines = 0
    for marks, is_quiet in on_all_cores(lambda piece: _look(source, scanner, *piece), pieces):
        yield from ((end, lines + count) for end, count in marks)
        lines += marks[-1][1] if marks else 0
        if not is_quiet:
            return


def _look(source: Source, scanner: Scanner, begin: int, end: int) -> tuple[list[Mark], bool]:
    """Return the ends of the blocks of the lines that begin between two bytes, and whether all of them were quiet."""
    begin = _line_start(source, begin)
    looks = _Looks(scanner)
    reader = LogReader(looks)
    reader.pass_over(begin, 0)
    if begin < end:
        for block in _between(source, begin, end, whole=True):
            reader.take(block)
            if looks.found:
                break
    return looks.marks, not looks.found


class _Looks(EventReader):
    """Takes the lines of a log for nothing but to see where something is found in them."""

    def __init__(self, scanner: Scanner) -> None:
        super().__init__(scanner.hits)
        self.found = False
        self.marks: list[Mark] = []

    def take(self, first: int, offset: int, texts: Sequence[str]) -> None:
        """Look at the next lines."""
        self.found = self.found or bool(self._hits(block_of(texts)))
        if not self.found and isinstance(texts, WholeLines):
            self.marks.append((offset + len(texts.scanned), first - 1 + len(texts)))


def _line_start(source: Source, at: int) -> int:
    """Return where the first line begins that begins at a byte or behind it; the end where none does."""
    if at == 0:
        return 0
    at -= 1
    for block in read_blocks(source, at):
        if (found := block.find(b"\n")) >= 0:
            return at + found + 1
        at += len(block)
    return at


def _between(source: Source, begin: int, end: int, *, whole: bool = False) -> Iterator[bytes]:
    """Yield the bytes between two places; `whole`: up to the end of the line that the last one is of."""
    at = begin
    for block in read_blocks(source, begin):
        if at + len(block) < end:
            yield block
            at += len(block)
            continue
        cut = block.find(b"\n", max(0, end - 1 - at)) + 1 if whole else end - at
        yield block[:cut] if cut else block
        if cut:
            return
        at += len(block)


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
