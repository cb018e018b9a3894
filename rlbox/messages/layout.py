"""Text in columns, where a letter may be two cells wide."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from rich.cells import cell_len

_GAP = re.compile(r"(\s{2,})")
_PIECE = re.compile(r"[!-\u10ff]+|\s+|.[、。，；：？！）」』”]*", re.DOTALL)
"""What is not broken: a word of letters one cell wide, a gap, another letter with signs that begin no line."""


def cells_told(line: str, tell: Callable[[str], str], before: Callable[[str], str] = str) -> str:
    """Tell a line cell by cell: what two spaces part begins where it began, or one gap on where there is no room.

    `before` gives a cell as it is in English, when something was kept out of it.
    """
    told, column = "", 0
    for at, part in enumerate(_GAP.split(line)):
        column += len(before(part))
        if at % 2 == 0:
            told += tell(part)
        elif told.endswith("："):
            continue
        elif told.strip():
            told += " " * max(2, column - cell_len(told))
        else:
            told += part
    return told


def wrapped(text: str, width: int) -> list[str]:
    """Return a paragraph as lines of at most `width` cells, but for a word that is longer."""
    lines, line = [], ""
    for piece in _PIECE.findall(" ".join(text.split())):
        if cell_len(line + piece.rstrip()) > width and line.strip():
            lines.append(line.rstrip())
            line = piece.lstrip()
        else:
            line += piece
    return [*lines, line.rstrip()] if line.strip() else lines


def paragraphs(text: str) -> Iterator[tuple[bool, list[str]]]:
    r"""Yield the paragraphs of a help text, each with whether its lines stay as they are: those below `\b`."""
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.split("\n")
        kept = lines[0].strip() == "\b"
        yield kept, lines[1:] if kept else lines
