"""Show a few lines at the bottom of a terminal again and again; rich paints them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text


def can_paint() -> bool:
    """Return whether the terminal that the environment names can move its cursor."""
    return os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


class Painter:
    """A region of lines from the cursor on; what stood above stays, and `clear` leaves nothing of it.

    A frame that is equal to the one before writes nothing. A terminal that is gone is no error: whoever follows the run
    finds out.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        from rich.console import Console

        self._console = Console(file=stream or sys.stderr, highlight=False, markup=False, emoji=False)
        self._live: Live | None = None
        self._lines: list[Text] = []
        self._width = 0

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows that a frame may have: one row is left for the cursor."""
        width, height = self._console.size
        return max(1, width - 1), max(1, height - 1)

    def paint(self, lines: Sequence[Text]) -> None:
        """Show `lines`, of which none may be wider and which may not be more than `size` says."""
        from rich.console import Group

        width = self.size[0]
        if not lines:
            self.clear()
        elif [*lines] != self._lines or width != self._width:
            with contextlib.suppress(OSError):
                self._live = self._live or self._begin()
                self._back(width)
                self._lines, self._width = [*lines], width
                self._live.update(Group(*lines), refresh=True)

    def clear(self) -> None:
        """Remove the region; the cursor is where it began."""
        if self._live:
            with contextlib.suppress(OSError):
                self._back(self.size[0])
                self._live.stop()
        self._live, self._lines = None, []

    def _begin(self) -> Live:
        from rich.live import Live

        live = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        live.start()
        return live

    def _back(self, width: int) -> None:
        """Erase the rows that a terminal made more of when it became narrower: rich knows only the lines."""
        from rich.control import Control
        from rich.segment import ControlType

        if width < self._width:
            more = sum(max(1, -(-line.cell_len // (width + 1))) - 1 for line in self._lines)
            self._console.control(Control(*((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)) * more))
