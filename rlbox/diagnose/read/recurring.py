"""Lines that come again with other numbers, before an error and after it: the work that they tell of goes on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlbox.diagnose.read.line import UNSAID, WARNED, read_row
from rlbox.diagnose.read.words import any_of
from rlbox.logs.lines import Texts

LINES = 48
"""Lines above an error, and at the end of a log, that are compared."""
_COMPARED = 64
"""Errors of a log, its first ones, whose lines above are kept."""
_LEAST_LETTERS = 4
_LONGEST = 200
_NUMBERS = re.compile(r"\d+(?:\.\d+)?")
_LETTER = re.compile(r"[A-Za-z]")
_OTHER = re.compile(r"^\s|^File |^Traceback|^[\w.]+(?:Error|Exception)\b|^[=+*#~ -]*$")
"""Lines of a traceback, and rules drawn between parts of a log."""


@dataclass(frozen=True, slots=True)
class Recurring:
    """A line that may come again: `lane` wrote it, `form` is its text without numbers."""

    number: int
    lane: str
    form: str
    text: str


def recurring(lines: Iterable[tuple[int, str]]) -> list[Recurring]:
    """Return the lines, each with its number, that may come again with other numbers: none that waits or warns."""
    return [found for number, text in lines if (found := _recurring(number, text))]


class LinesAround:
    """Keeps the last blocks of a log, in which the lines above its next error lie, and what stood above errors."""

    def __init__(self) -> None:
        self._blocks: list[tuple[int, Texts]] = []
        self._above: dict[int, tuple[Recurring, ...]] = {}

    def take(self, first: int, block: Texts) -> None:
        """Keep a block whose first line has the number `first`."""
        while self._blocks and first - (self._blocks[0][0] + len(self._blocks[0][1])) >= LINES:
            self._blocks.pop(0)
        self._blocks.append((first, block))

    def look_above(self, number: int) -> None:
        """Keep what stands above an error that begins at a line."""
        if number not in self._above and len(self._above) < _COMPARED:
            self._above[number] = tuple(recurring(self._lines(number - LINES, number)))

    def above(self, number: int) -> tuple[Recurring, ...]:
        """Return what stood above the error that begins at a line."""
        return self._above.get(number, ())

    def below(self, lines: int) -> tuple[Recurring, ...]:
        """Return what stands at the end of a log of so many lines; nothing where it is not compared."""
        if not any(self._above.values()):
            return ()
        return tuple(recurring(self._lines(lines + 1 - LINES, lines + 1)))

    def _lines(self, begin: int, end: int) -> list[tuple[int, str]]:
        return [
            (number, block[number - first])
            for first, block in self._blocks
            for number in range(max(begin, first), min(end, first + len(block)))
        ]


def comes_again(above: Sequence[Recurring], below: Sequence[Recurring], lane: str) -> int:
    """Return how many lines of a lane stand below an error that also stood above it, with other numbers."""
    forms = {one.form for one in above if one.lane == lane}
    texts = {one.text for one in above}
    return len({one.text for one in below if one.lane == lane and one.form in forms and one.text not in texts})


def _recurring(number: int, text: str) -> Recurring | None:
    row = read_row(number, text[:_LONGEST])
    body = row.body
    if (row.level >= WARNED and row.level != UNSAID) or _OTHER.search(body) or not _NUMBERS.search(body):
        return None
    form = _NUMBERS.sub("0", body)
    if len(_LETTER.findall(form)) < _LEAST_LETTERS or any_of("recurring", "waits").search(body):
        return None
    return Recurring(number, row.lane, form, body)
