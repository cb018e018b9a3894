"""Something that a log says went wrong: one line or a whole traceback, with all that a judge needs of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from rlbox.diagnose.read.classes import Class, class_of
from rlbox.diagnose.read.line import FAILED, UNSAID, WARNED, LogRow
from rlbox.diagnose.read.recurring import Recurring
from rlbox.diagnose.read.trace import Raised, StackFrame, Trace, raised_in

Statement = tuple[int, str, str, list[tuple[int, str]]]
"""A line that says what went wrong: number, text, exception's name, and the lines that it goes on with, by number."""


@dataclass(slots=True)
class Event:
    """One statement of failure.

    `number` is the line that says it, `begun` and `last` those between which it lies. `weight` is how surely it states
    a failure (`read/forms.py`). `file` is the place of its log among those that are read. `count` is how many alike
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
