"""Paint a few lines at the bottom of a terminal again and again, touching only what changed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
"""Synchronized output: a terminal that knows it shows the change as a whole, any other passes over it."""

_COLUMNS, _ROWS = 80, 24
"""The size of a terminal that does not tell its own."""

_CLEAR_LINE, _CLEAR_BELOW = "\x1b[K", "\x1b[J"


def can_paint() -> bool:
    """Return whether the terminal that the environment names can move its cursor."""
    return os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


class Painter:
    """A region of lines from the cursor on; what stood above stays, and `clear` leaves nothing of it.

    A frame that is equal to the one before writes nothing. Lines that are as they were are not written again. When the
    terminal was resized, the region is painted anew.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        from rich.console import Console

        self._stream = stream or sys.stderr
        self._console = Console(file=self._stream, highlight=False, markup=False, emoji=False)
        self._lines: list[Text] = []
        self._shown: list[str] = []
        self._cells: list[int] = []
        self._size = (0, 0)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows that a frame may have: one row is left for the cursor."""
        try:
            width, height = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            width, height = 0, 0
        return max(1, (width or _COLUMNS) - 1), max(1, (height or _ROWS) - 1)

    @property
    def painted(self) -> bool:
        """Whether anything stands there now."""
        return bool(self._shown)

    def paint(self, lines: Sequence[Text]) -> None:
        """Show `lines`, of which none may be wider and which may not be more than `size` says."""
        size = self._console.size = self.size
        if size == self._size and self._shown and [*lines] == self._lines:
            return
        self._lines = [*lines]
        shown = [_drawn(self._console, line) for line in lines]
        resized = size != self._size and bool(self._shown)
        if shown == self._shown and not resized:
            return
        if resized:
            change = self._back(self._rows(size[0])) + _CLEAR_BELOW + "".join(f"{line}\r\n" for line in shown)
        else:
            change = self._change(shown)
        self._shown, self._cells, self._size = shown, [line.cell_len for line in lines], size
        self._write(_BEGIN + change + _END)

    def clear(self) -> None:
        """Remove the region; the cursor is where it began."""
        if self._shown:
            self._write(_BEGIN + self._back(self._rows(self.size[0])) + _CLEAR_BELOW + _END)
        self._shown, self._cells = [], []

    def _change(self, shown: list[str]) -> str:
        parts = [self._back(len(self._shown))]
        for number, line in enumerate(shown):
            same = number < len(self._shown) and self._shown[number] == line
            parts.append("\r\n" if same else f"{line}{_CLEAR_LINE}\r\n")
        if len(shown) < len(self._shown):
            parts.append(_CLEAR_BELOW)
        return "".join(parts)

    def _rows(self, width: int) -> int:
        """Return how many rows the region takes after the terminal broke its lines anew at `width`."""
        return sum(max(1, -(-cells // (width + 1))) for cells in self._cells)

    def _back(self, rows: int) -> str:
        return f"\r\x1b[{rows}A" if rows else "\r"

    def _write(self, text: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        try:
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except OSError:
            return  # the terminal is gone; whoever follows the run finds out


def _drawn(console: Console, line: Text) -> str:
    with console.capture() as capture:
        console.print(line, end="", no_wrap=True, overflow="ellipsis", crop=True)
    return capture.get()
