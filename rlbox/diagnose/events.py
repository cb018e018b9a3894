"""Something that a log says went wrong: one line or a complete traceback, with all that an analysis needs of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlbox.diagnose.lines import (
    CERTAIN_FAILURE,
    LEVEL_WARNING,
    NO_LEVEL,
    Certainty0To3,
    LevelDebug0ToFatal4,
    LogLine,
    parse_line,
)
from rlbox.diagnose.patterns import CausalRole, classify_causal_role, compile_toml_pattern_union
from rlbox.diagnose.tracebacks import (
    LineNumberAndText,
    OneTracebackParser,
    RaisedException,
    StackFrame,
    parse_leading_exception_name,
)
from rlbox.logs.lines import LineBlock


@dataclass(slots=True)
class FailureEvent:
    """One statement of failure.

    `main_line_number` is the line that says it, `first_number` and `last_number` its first and last line. `certainty`
    is that of `rate_failure_certainty`. `count` is how many equal ones its writer wrote, `last_repeat_line` is that of
    the last one. `is_handled`: it was logged as a warning or less; `is_declared_harmless`: the job declares it
    harmless. `nearest_clock` is the clock of a line above it, where its own shows none. `block_first_line_and_byte`
    are those of the first line of its block, so that it can be sought. `step_like_lines_above` are lines that may come
    again; `lines_above` are the lines right above it.
    """

    main_line_number: int
    text: str
    body: str
    log_line: LogLine
    first_number: int
    last_number: int
    certainty: Certainty0To3
    exceptions: tuple[RaisedException, ...] = ()
    tail: list[LineNumberAndText] = field(default_factory=list)
    is_handled: bool = False
    is_declared_harmless: bool = False
    names_exception: bool = False
    log_index: int = 0
    count: int = 1
    last_repeat_line: int = 0
    nearest_clock: str = ""
    block_first_line_and_byte: tuple[int, int] = (1, 0)
    step_like_lines_above: tuple[RecurringLine, ...] = ()
    lines_above: str = ""
    work_continued: bool = False
    classification: tuple[tuple[int, ...], Any] | None = None

    @property
    def writer(self) -> str:
        return self.log_line.writer

    @property
    def log_level(self) -> LevelDebug0ToFatal4:
        return self.log_line.level

    @property
    def frames_of_all_exceptions(self) -> list[StackFrame]:
        return [frame for raised in self.exceptions for frame in raised.frames]

    @property
    def last_exception_or_main_line_number(self) -> int:
        """The number of the line that names its last exception; the lines of its message may be others'."""
        return max((one.number for one in self.exceptions), default=self.main_line_number)

    @property
    def exception_name_in_line(self) -> str:
        """The exception, without modules, that a single line names; empty when it names none."""
        name = parse_leading_exception_name(self.body) if self.names_exception else None
        return name.rpartition(".")[2] if name else ""

    @property
    def exceptions_or_line(self) -> tuple[RaisedException, ...]:
        line = RaisedException(self.main_line_number, self.exception_name_in_line, self.body, tail=self.tail)
        return self.exceptions or (line,)

    def classify_statement(self, statement: RaisedException) -> CausalRole:
        if self.log_level in (0, 1, LEVEL_WARNING) and not self.exceptions:
            return "noise"
        if any(one.quotes_other and one.text == statement.text for one in self.exceptions):
            return "relayed"
        return classify_causal_role(statement.text, statement.class_name)


def make_line_event(line: LogLine, certainty: Certainty0To3, *, names_exception: bool = False) -> FailureEvent:
    number, body = line.number, line.body.strip()
    return FailureEvent(number, line.text, body, line, number, number, certainty, names_exception=names_exception)


def make_traceback_event(parser: OneTracebackParser) -> FailureEvent | None:
    """Return the event of a finished traceback; None when it names no exception."""
    if not parser.exceptions:
        return None
    head = replace(parser.head, level=NO_LEVEL) if parser.is_forwarded_at_info_or_debug else parser.head
    number, text = parser.exceptions[0].number, parser.exceptions[0].text
    event = FailureEvent(
        number, text, text, head, parser.first_number, parser.last, CERTAIN_FAILURE, names_exception=True
    )
    event.exceptions = tuple(parser.exceptions)
    # the process that removes leaked semaphores goes on after each error
    is_tracker = any(frame.file.endswith("resource_tracker.py") for frame in event.frames_of_all_exceptions[:1])
    event.is_handled = parser.is_muted or is_tracker or head.level in (0, 1, LEVEL_WARNING)
    return event


def is_traceback_from_logger(event: FailureEvent) -> bool:
    """Whether a traceback was written by a logger, so that somebody had caught the exception."""
    return bool(event.exceptions) and event.log_level != NO_LEVEL


COMPARED_LINES = 48
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
class RecurringLine:
    """`shape` is its text without numbers."""

    number: int
    writer: str
    shape: str
    text: str


class RecentLines:
    """The last blocks of a log, and the lines above each error."""

    def __init__(self) -> None:
        self._blocks: list[LineBlock] = []
        self.step_like_lines_above: dict[int, tuple[RecurringLine, ...]] = {}

    def feed(self, block: LineBlock) -> None:
        first = block.first_number
        while self._blocks and first - self._blocks[0].first_number - len(self._blocks[0]) >= COMPARED_LINES:
            self._blocks.pop(0)
        self._blocks.append(block)

    def keep_step_like_lines_above(self, line_number: int) -> None:
        if len(self.step_like_lines_above) < _COMPARED:
            self.step_like_lines_above[line_number] = self.find_step_like_lines_before(line_number)

    def find_step_like_lines_before(self, line_number: int) -> tuple[RecurringLine, ...]:
        """Return lines that may come again with other numbers, as steps do; not those that wait or warn."""
        lines = (_parse_step_like_line(*line) for line in self.list_lines(line_number - COMPARED_LINES, line_number))
        return tuple(filter(None, lines))

    def get_space_joined_lines_above(self, line_number: int) -> str:
        """Return at most 40 lines, joined by blanks: RE2 is told to match no line feed."""
        return " ".join(text[:_LONGEST] for _number, text in self.list_lines(line_number - 40, line_number))

    def list_lines(self, begin: int, end: int) -> list[tuple[int, str]]:
        return [
            (number, block[number - block.first_number])
            for block in self._blocks
            for number in range(max(begin, block.first_number), min(end, block.first_number + len(block)))
        ]


def count_lines_resumed_with_other_numbers(
    above: Sequence[RecurringLine], below: Sequence[RecurringLine], writer: str
) -> int:
    """Return how many lines of a writer come again below an error with other numbers."""
    forms = {one.shape for one in above if one.writer == writer}
    texts = {one.text for one in above}
    return len({one.text for one in below if one.writer == writer and one.shape in forms and one.text not in texts})


def _parse_step_like_line(number: int, text: str) -> RecurringLine | None:
    row = parse_line(number, text[:_LONGEST])
    body = row.body
    if (row.level >= LEVEL_WARNING and row.level != NO_LEVEL) or _OTHER.search(body) or not _NUMBERS.search(body):
        return None
    form = _NUMBERS.sub("0", body)
    if len(_LETTER.findall(form)) < _LEAST_LETTERS or compile_toml_pattern_union("recurring", "waits").search(body):
        return None
    return RecurringLine(number, row.writer, form, body)
