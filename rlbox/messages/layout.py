"""Text in columns, where a letter may be two cells wide."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from rich.cells import cell_len

_GAP = re.compile(r"(\s{2,})")
_ROOM = 2
_PIECE = re.compile(r"[!-\u10ff]+|\s+|.[、。，；：？！）」』”]*", re.DOTALL)
"""What is not broken: a word of letters one cell wide, a gap, another letter with signs that begin no line."""


def cells_told(text: str, tell: Callable[[str], str], before: Callable[[str], str] = str) -> str:
    """Tell lines cell by cell; what begins in one column in English does so again, further on where room is needed.

    Two spaces part cells; what follows a text after no more than those, in its line alone, does so in any language.
    `before` gives a cell as it is in English, when something was kept out of it.
    """
    rows = [list(_cells(line, tell, before)) for line in text.split("\n")]
    done: list[str] = []
    for _, block in groupby(rows, lambda row: len(row) > 1):
        lines = list(block)
        columns = _columns(lines)
        done += [_line(row, columns) for row in lines]
    return "\n".join(done)


class _Cell(NamedTuple):
    """A cell told: where it begins in English, whether it hangs on a colon of two cells, or but follows a text."""

    begins: int
    text: str
    hangs: bool
    follows: bool


def _cells(line: str, tell: Callable[[str], str], before: Callable[[str], str]) -> Iterator[_Cell]:
    margin = line[: len(line) - len(line.lstrip(" "))]
    column, told, gap = len(margin), "", 0
    for at, part in enumerate(_GAP.split(line[len(margin) :])):
        if at % 2 == 0:
            hangs, told = told.endswith("："), tell(part)
            yield _Cell(column, told if at else margin + told, hangs, gap == _ROOM and not part[:1].isdigit())
        gap = len(part)
        column += len(before(part))


def _columns(rows: Sequence[Sequence[_Cell]]) -> Mapping[int, int]:
    """Return where columns begin that lines share, by where they do so in English."""
    shared = Counter(cell.begins for row in rows for cell in row[1:])
    found: dict[int, int] = {}
    for begins in sorted(shared):
        ends = [_end(row, at, found) for row in rows for at, cell in enumerate(row) if at and cell.begins == begins]
        if len(ends) > 1:
            found[begins] = max(begins, *(end + _ROOM for end in ends))
    return found


def _end(row: Sequence[_Cell], count: int, columns: Mapping[int, int]) -> int:
    """Return where the first cells of a line end."""
    return cell_len(_line(row[:count], columns))


def _line(row: Sequence[_Cell], columns: Mapping[int, int]) -> str:
    line, moved = "", 0
    for cell in row:
        if line and not cell.hangs:
            alone = cell_len(line) + _ROOM if cell.follows else cell.begins + moved
            begins = columns.get(cell.begins, alone)
            moved = begins - cell.begins
            line += " " * max(_ROOM, begins - cell_len(line))
        line += cell.text
    return line


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
