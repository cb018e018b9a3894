"""Read a log file as lines, in flat memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rlbox.plan.lines import Line, LineCutter

_BLOCK = 1 << 20


def read_lines(path: Path) -> Iterator[Line]:
    """Return the lines of a log, the last one also without a line feed; nothing when it is missing."""
    cutter = LineCutter()
    if path.is_file():
        with open(path, "rb") as file:
            while block := file.read(_BLOCK):
                yield from cutter.feed_lines(block)
    for text in cutter.close():
        yield Line(number=cutter.number, text=text)
