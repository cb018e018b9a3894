"""Read the lines around a place of a log by a seek, however long the log is."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rlbox.causes.first_fatal import FatalSpot, FirstFatal
from rlbox.files.act.beneath import open_file
from rlbox.files.act.tail import FORWARD_LIMIT, STEP, line_offset, lines_above
from rlbox.logs.lines import LineCutter

CONTEXT_LINES = 100
"""Lines kept before and after the fatal one (DESIGN §6)."""

_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class FatalLine:
    """A fatal line with up to `CONTEXT_LINES` lines around it as they are in the log; `offset` is its first byte."""

    number: int
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    offset: int = 0


def read_fatal_line(log: Path, spot: FatalSpot) -> FatalLine:
    """Return the line at `spot` with those around it; without them when the log cannot be read any more."""
    try:
        with open_file(log) as file:
            offset = line_offset(file, spot.block_offset, spot.number - spot.block_number)
            start, above = lines_above(file, offset, CONTEXT_LINES)
            texts = _texts(file, start, above + 1 + CONTEXT_LINES)
    except OSError:
        return FatalLine(number=spot.number, text=spot.text)
    return FatalLine(
        number=spot.number,
        text=spot.text,
        before=tuple(texts[:above]),
        after=tuple(texts[above + 1 :]),
        offset=offset,
    )


def scan_log(log: Path) -> FatalSpot | None:
    """Return the first fatal line of a log that nobody followed; None when it holds none or is not there."""
    finder, cutter, begun, offset = FirstFatal(), LineCutter(), 0, 0
    for block in read_blocks(log):
        first, texts = cutter.number + 1, cutter.feed(block)
        finder.take(first, begun, texts)
        if finder.settled:
            break
        offset += len(block)
        if texts:
            begun = offset - len(block) + block.rindex(b"\n") + 1
    finder.take(cutter.number + 1, begun, cutter.close())
    return finder.spot


def last_line(log: Path) -> FatalLine | None:
    """Return the last line that is not blank, with those above it; None when there is none."""
    start, texts = _last_texts(log, 2 * CONTEXT_LINES)
    while texts and not texts[-1].strip():
        texts.pop()
    if not texts:
        return None
    number = sum(block.count(b"\n") for block in read_blocks(log, start)) + len(texts)
    return FatalLine(number=number, text=texts[-1].strip(), before=tuple(texts[-CONTEXT_LINES - 1 : -1]), offset=start)


def read_last_lines(log: Path, lines: int) -> str:
    """Return the last lines of a log as text; empty when it cannot be read."""
    return "".join(f"{text}\n" for text in _last_texts(log, lines)[1][-lines:])


def _last_texts(log: Path, lines: int) -> tuple[int, list[str]]:
    """Return where the last lines of a log begin, and their texts; none when it cannot be read."""
    try:
        with open_file(log) as file:
            start, _ = lines_above(file, file.seek(0, os.SEEK_END), lines)
            return start, _texts(file, start, lines + 1)
    except OSError:
        return 0, []


def _texts(file: BinaryIO, start: int, lines: int) -> list[str]:
    file.seek(start)
    cutter, read = LineCutter(), 0
    texts: list[str] = []
    while len(texts) < lines and read < FORWARD_LIMIT and (block := file.read(STEP)):
        texts += cutter.feed(block)
        read += len(block)
    if len(texts) < lines:
        texts += cutter.close()
    return texts[:lines]


def read_blocks(path: Path, end: int = sys.maxsize) -> Iterator[bytes]:
    """Return the bytes of a log, those before `end`, in pieces of at most 1 MiB; nothing when it cannot be read."""
    with contextlib.suppress(OSError), open_file(path) as file:
        while block := file.read(min(_BLOCK, end)):
            end -= len(block)
            yield block
