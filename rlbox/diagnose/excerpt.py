"""Read the lines around a place of a log by a seek, however long the log is."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rlbox.diagnose.catalogue import SignatureSet
from rlbox.diagnose.live import NOTHING, FatalSpot, FirstFatal
from rlbox.diagnose.sources import Source, is_packed
from rlbox.diagnose.verdict import Diagnosis, shown_text
from rlbox.logs.codes import clean_text
from rlbox.logs.lines import LineCutter
from rlbox.system.safe_files import open_regular_fd, open_regular_file
from rlbox.system.tail import FORWARD_LIMIT, STEP, find_line_above, find_line_below

CONTEXT_LINES = 100
"""Lines kept before and after the fatal one (DESIGN §6)."""

_BLOCK = 1 << 20
_SHOWN = 200


@dataclass(frozen=True, kw_only=True)
class FatalLine:
    """A fatal line with up to `CONTEXT_LINES` lines around it as they are in the log; `offset` is its first byte."""

    number: int
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    offset: int = 0


def read_fatal_line(log: Path, spot: FatalSpot, *, links: bool = False) -> FatalLine:
    """Return the line at `spot` with those around it; without them when the log cannot be read any more."""
    try:
        with open(open_regular_fd(log, links=links), "rb") as file:
            offset = find_line_below(file, spot.block_offset, spot.number - spot.block_number)
            start, above = find_line_above(file, offset, CONTEXT_LINES)
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


def scan_log(log: Path, catalogue: SignatureSet = NOTHING) -> FatalSpot | None:
    """Return the first fatal line of a log that nobody followed; None when it holds none or is not there."""
    finder, cutter, begun, offset = FirstFatal(catalogue=catalogue), LineCutter(), 0, 0
    for block in read_blocks(log):
        first, texts = cutter.number + 1, cutter.feed(block)
        finder.take(first, begun, texts)
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
        with open_regular_file(log) as file:
            start, _ = find_line_above(file, file.seek(0, os.SEEK_END), lines)
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
    with contextlib.suppress(OSError), open_regular_file(path) as file:
        while block := file.read(min(_BLOCK, end)):
            end -= len(block)
            yield block


def excerpt_of(found: Diagnosis, sources: Sequence[Source], lines: int = 5) -> str:
    """Return the lines around the root as text, the root marked `>`; empty where its log cannot be read again."""
    if found.root is None:
        return ""
    source, event = sources[found.root.event.file], found.root.event
    if source.path is None or source.member or is_packed(source.path):
        return ""
    spot = FatalSpot(
        number=found.root.number, text=event.text, block_number=event.offset[0], block_offset=event.offset[1]
    )
    line = read_fatal_line(source.path, spot, links=True)
    before, after = line.before[-lines:], line.after[:lines]
    rows = [(line.number - len(before) + place, " ", text) for place, text in enumerate(before)]
    rows.append((line.number, ">", shown_text(found.root)))
    rows += [(line.number + 1 + place, " ", text) for place, text in enumerate(after)]
    return "\n".join(f"{mark}{number:7d} {clean_text(text)[:_SHOWN]}" for number, mark, text in rows)
