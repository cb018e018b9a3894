"""Something that a log says went wrong: one line or a complete traceback, with all that an analysis needs of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rlbox.diagnose.lines import FAILED, UNSAID, WARNED, LogRow, read_row
from rlbox.diagnose.patterns import Class, any_of, class_of
from rlbox.diagnose.tracebacks import Raised, StackFrame, Trace, raised_in
from rlbox.logs.lines import Texts

Statement = tuple[int, str, str, list[tuple[int, str]]]
"""A line that says what went wrong: number, text, exception's name, and the lines that it goes on with, by number."""


@dataclass(slots=True)
class Event:
    """One statement of failure.

    `number` is the line that says it, `begun` and `last` those between which it lies. `weight` is how surely it states
    a failure (`patterns.py`). `file` is the place of its log among those that are read. `count` is how many alike
    there were in the lane, `again` the number of the last of these. `handled`: a log of a warning or less holds
    it; `excused`: it is declared harmless. `near` is the clock of a line above it, where its own
    shows none. `offset` are number and byte of the first line of the block in which it was met. `above` are lines
    before it that may come again; `went_on`: the line behind it says that the work goes on.
    """

    number: int
    text: str
    body: str
    row: LogRow
    begun: int
    last: int
    weight: int
    raised: tuple[Raised, ...] = ()
    tail: list[tuple[int, str]] = field(default_factory=list)
    handled: bool = False
    excused: bool = False
    named: bool = False
    file: int = 0
    count: int = 1
    again: int = 0
    near: str = ""
    offset: tuple[int, int] = (1, 0)
    above: tuple[Recurring, ...] = ()
    went_on: bool = False

    @property
    def lane(self) -> str:
        """The process or worker that wrote it, as written."""
        return self.row.lane

    @property
    def level(self) -> int:
        """The level that its line, or the head of its traceback, states."""
        return self.row.level

    @property
    def frames(self) -> list[StackFrame]:
        """The frames above all of its exceptions, outermost first."""
        return [frame for raised in self.raised for frame in raised.frames]

    @property
    def ended(self) -> int:
        """The number of the line that names its last exception; what its message goes on with may be others' lines."""
        return max((one.number for one in self.raised), default=self.number)

    @property
    def kind(self) -> str:
        """The name, without modules, of the exception that a single line states; empty where it states none."""
        found = raised_in(self.body) if self.named else None
        return found[0].rpartition(".")[2] if found else ""

    def statements(self) -> Iterator[Statement]:
        """Yield the lines that say what went wrong."""
        if not self.raised:
            yield self.number, self.body, self.kind, self.tail
        for raised in self.raised:
            yield raised.number, raised.text, raised.kind, raised.tail

    def class_at(self, text: str, kind: str) -> Class:
        """Return the class of one of its statements by level and words."""
        if self.level in (0, 1, WARNED) and not self.raised:
            return "noise"
        if any(one.quotes and one.text == text for one in self.raised):
            return "relayed"
        return class_of(text, kind)


def from_line(row: LogRow, weight: int, *, named: bool = False) -> Event:
    """Return the event that a single line states."""
    return Event(row.number, row.text, row.body.strip(), row, row.number, row.number, weight, named=named)


def from_trace(trace: Trace, weight: int) -> Event | None:
    """Return the event of a traceback that has ended; None when it names no exception."""
    if not trace.raised:
        return None
    first = trace.raised[0]
    head = replace(trace.head, level=UNSAID) if trace.forwarded else trace.head
    event = Event(
        first.number, first.text, first.text, head, trace.begun, trace.last, weight, tuple(trace.raised), named=True
    )
    event.handled = trace.muted or head.level in (0, 1, WARNED)
    return event


def is_logged(event: Event) -> bool:
    """Whether a traceback was written by a logger, so that somebody had caught the exception."""
    return bool(event.raised) and (event.level >= FAILED or event.level not in (UNSAID, FAILED))


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
