"""Read the events of one log while it grows, in flat memory, whatever the log holds."""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rlbox.diagnose.events import FailureEvent, RecentLines, RecurringLine, make_line_event, make_traceback_event
from rlbox.diagnose.lines import (
    CERTAIN_FAILURE,
    NO_LEVEL,
    POSSIBLE_FAILURE,
    STATED_FAILURE,
    LogLine,
    parse_line,
    rate_failure_certainty,
)
from rlbox.diagnose.patterns import (
    PROGRAM_KINDS_HEAD_BYTES,
    ProgramKind,
    ProgressMark,
    compile_progress_prefilter,
    detect_activity_kinds,
    find_progress_sign,
    says_work_continues,
)
from rlbox.diagnose.signatures import SignatureSet
from rlbox.diagnose.tracebacks import (
    OneTracebackParser,
    is_exception_chain_line,
    is_traceback_head_or_frame,
    parse_leading_exception_name,
)
from rlbox.logs.lines import LINE_LIMIT, LineBlock
from rlbox.logs.patterns import find_candidate_line_indexes, iterate_matching_line_indexes

MAX_EVENTS = 4000
"""Events that are kept of one log: the first ones, and of further ones the last."""
_MOST_LANES = 512
_LATE = 4000
"""Lines after which a traceback that was not ended is given up: its process died while it wrote."""
_GOES_ON = 48
"""Lines, those of other writers counted, within which a message goes on."""
_TAIL = 8
_MARKS = 400
_FIRST_MARKS = 16
_LAST_BYTES = 16 * 1024
"""Of a block of lines the first signs of work are kept, and those in its last bytes."""
_BEHIND = 3
"""Lines behind an error within which somebody says that the work goes on."""
_MARKED = 300
"""Characters of a line in which a sign of work is looked for."""
_EXCERPT = 40
"""Lines of a log that is a pasted excerpt, in which the line with an error word may be left out."""
_SOURCE = re.compile(
    r"^\s*(?:raise|return|assert|await|yield|if|elif|for|while|with|def|class|except|self\.\w+\()\b[^:]*$|^\s*raise "
)
"""A line of source, which a traceback that has lost its head quotes."""
_NATIVE = re.compile(r"^\s*(?:frame #\d+:|Exception raised from \w+ at )")
"""A line of a native stack, as torch prints it behind what it says."""
_NCCL_RESULT = re.compile(r"nccl[A-Z]\w+: ")
"""NCCL's word for an error: torch prints it on a line of its own, and the reason below it."""
_DUMPED = re.compile(r'^\s*(?:File "[^"\n]{1,400}", line \d+ in |(?:Current thread|Thread) 0x[0-9a-f]+)')
"""A line of the stacks that Python's fault handler prints."""
_MUTED = re.compile(r"Exception ignored in|--- Logging error ---|^Call stack:$")
"""A line behind which Python shows a traceback of what it goes on without, or of where it logs."""
_SPEECH = re.compile(r"^\s*(?:User|Assistant|Human|Prompt|Question|Answer|Response|Generated text)\s?: ")
"""What a model or its user says, as examples and evaluations print it."""
_DUMP = 24
_LINKED = 8
"""Lines within which an exception is followed by the one that came of it."""
_PANIC = re.compile(r"^\s*thread '[^']*' (?:\(\d+\) )?panicked at \S+:\d+:\d+:\s*$")
"""Rust's notice of a panic; what went wrong is on the next line."""
_WRITTEN = "Traceback (most recent call last):\\n"
"""How a traceback begins that is the text of a field, its line feeds written out."""
_BEHIND_TEXT = re.compile(r"[\"'](?:\s*[,})\]].*)?$")
_WITH_LINES_ABOVE = 64
"""Errors of a log, its first ones, whose lines above are kept."""
_DIGITS = re.compile(r"0x[0-9a-fA-F]+|\d+")

IsExcused = Callable[[int, str], bool]


@dataclass(slots=True)
class LogEvents:
    """What was read of a log: its events in the order of their lines, the signs of work, and how far it goes.

    `step_like_lines_at_end` are the lines at its end that may have stood above an event before. `last_clock` is the
    last time in its last lines, as it is written there; empty where they have none.
    """

    events: list[FailureEvent] = field(default_factory=list)
    progress_marks: list[ProgressMark] = field(default_factory=list)
    line_count: int = 0
    step_like_lines_at_end: tuple[RecurringLine, ...] = ()
    program_kinds: frozenset[ProgramKind] = frozenset()
    last_clock: str = ""

    @property
    def has_completion_sign_at_end(self) -> bool:
        last = next((mark.sign for mark in reversed(self.progress_marks) if mark.sign != "exiting"), "")
        return last in ("done", "finished", "validated", "saved", "stop")


class EventReader:
    """Takes blocks of lines in order, and gives the events in them.

    `file_index`: The place of this log among those that are read.
    `catalogue`: What it knows is a statement, though it states no failure by its form.
    `is_excused`: Whether a line is declared harmless, by its number and text.
    """

    def __init__(self, catalogue: SignatureSet, file_index: int = 0, *, is_excused: IsExcused | None = None) -> None:
        self.read = LogEvents()
        self._catalogue = catalogue
        self._file = file_index
        self._excused = is_excused
        self._open: dict[str, OneTracebackParser] = {}
        self._tails: dict[str, FailureEvent] = {}
        self._alike: dict[tuple[str, str], FailureEvent] = {}
        self._block = LineBlock(b"", 0)
        self._panic: LogLine | None = None
        self._fault: FailureEvent | None = None
        self._muted = -9
        self._until = 0
        self._clock = ""
        self._around = RecentLines()

    def feed(self, block: LineBlock) -> None:
        if not block:
            return
        self._block, first_number = block, block.first_number
        self._around.feed(block)
        if block.first_byte < PROGRAM_KINDS_HEAD_BYTES:
            self.read.program_kinds |= detect_activity_kinds(
                block.joined[: PROGRAM_KINDS_HEAD_BYTES - block.first_byte]
            )
        hits = iter(
            find_candidate_line_indexes(self._catalogue.line_prefilter_expressions, block)
            if block.hits is None
            else block.hits
        )
        hit = next(hits, -1)
        index, count = 0, len(block)
        while index < count:
            if not self._open and self._until < first_number + index:  # nothing goes on
                if hit < 0:
                    break
                index = hit
            self._see(first_number + index, block[index], index == hit)
            index += 1
            while 0 <= hit < index:
                hit = next(hits, -1)
        self.read.line_count = first_number + count - 1
        self._mark(block)

    def close(self) -> LogEvents:
        for writer in list(self._open):
            self._end(writer, is_log_end=True)
        if not self.read.events and self.read.line_count <= _EXCERPT:
            self._keep_lines_of_specific_signatures()
        self._tails.clear()
        self.read.last_clock = _find_clock_at_or_above(self._block, len(self._block) - 1, lines=200)
        self.read.step_like_lines_at_end = self._around.find_step_like_lines_before(self.read.line_count + 1)
        return self.read

    def collect_events_so_far(self) -> LogEvents:
        """Return the events so far, with those of open tracebacks that name an exception already."""
        ends = [event for trace in self._open.values() if (event := make_traceback_event(trace))]
        for event in ends:
            self._complete(event)
        above = self._around.find_step_like_lines_before(self.read.line_count + 1)
        return replace(self.read, events=[*self.read.events, *ends], step_like_lines_at_end=above)

    def _see(self, number: int, text: str, hit: bool) -> None:
        if hit:
            self._until = number + _GOES_ON
        for row in _split_lines(number, text):
            self._see_row(row, hit)
        if number % 16 == 0:
            self._give_up(number)

    def _see_row(self, row: LogLine, hit: bool) -> None:
        self._clock = row.clock or self._clock
        if _MUTED.search(row.body):
            self._muted = row.number
        if not row.body.strip() and (not row.has_prefix or row.has_timestamp_but_no_level_or_call_site):
            for writer in [writer for writer, trace in self._open.items() if not trace.prefixed]:
                self._feed(writer, row)
            self._tails.pop(row.writer, None)
            return
        if (owner := self._owner(row)) is not None and self._feed(owner, row):
            return
        if _DUMPED.match(row.body):
            if self._fault is not None and len(self._fault.tail) < _DUMP:
                self._fault.tail.append((row.number, row.body.strip()))
            return
        if is_traceback_head_or_frame(row.body):
            self._begin(row)
            return
        if is_exception_chain_line(row.body) and self._goes_on(row):
            return
        self._hear(row)
        if not _NATIVE.match(row.body) and not self._add_tail(row) and (hit or self._panic):
            self._state(row)

    def _hear(self, row: LogLine) -> None:
        last = self.read.events[-1] if self.read.events else None
        if last and last.writer == row.writer and row.number - last.last_number <= _BEHIND:
            last.work_continued = last.work_continued or says_work_continues(row.body)

    def _owner(self, row: LogLine) -> str | None:
        if row.writer in self._open:
            return row.writer
        if row.writer:
            trace = self._open.get("")
            if trace and trace.lines == 0 and not trace.is_headless:  # its head was written without the prefix
                self._open[row.writer] = self._open.pop("")
                return row.writer
            return None
        if row.has_prefix and row.clock:
            return None
        return next((writer for writer in reversed(self._open) if not self._open[writer].prefixed), None)

    def _feed(self, writer: str, row: LogLine) -> bool:
        trace = self._open[writer]
        taken = trace.try_add_line(row)
        if trace.closed:
            self._end(writer)
        return taken

    def _begin(self, row: LogLine) -> None:
        if row.writer in self._open:
            self._end(row.writer)
        if len(self._open) >= _MOST_LANES:
            self._end(next(iter(self._open)))
        self._tails.pop(row.writer, None)
        headless = "Traceback (most" not in row.body
        self._around.keep_step_like_lines_above(row.number)
        self._open[row.writer] = OneTracebackParser(row, headless=headless)
        self._open[row.writer].is_muted = row.number - self._muted <= 2

    def _goes_on(self, row: LogLine) -> bool:
        """Start a traceback at an exception's line when a link to another exception follows it."""
        last = self.read.events[-1] if self.read.events else None
        is_near = last is not None and last.writer == row.writer and row.number - last.main_line_number <= _LINKED
        if last is None or not is_near or last.exceptions or not last.exception_name_in_line:
            return False
        self.read.events.pop()
        self._alike = {key: event for key, event in self._alike.items() if event is not last}
        self._tails.pop(row.writer, None)
        self._open[row.writer] = OneTracebackParser.start_at_exception_line(last.log_line)
        return self._feed(row.writer, row)

    def _end(self, writer: str, *, is_log_end: bool = False) -> None:
        trace = self._open.pop(writer)
        if event := make_traceback_event(trace):
            self._keep(event)
        elif trace.is_headless or trace.lines > 2 or is_log_end:
            known = (line for line in trace.other_lines if self._catalogue.has_match(line.body))
            event = make_line_event(next(known, trace.head), POSSIBLE_FAILURE)
            self._keep(replace(event, first_number=trace.first_number, last_number=trace.last))

    def _give_up(self, number: int) -> None:
        for writer, trace in list(self._open.items()):
            if trace.last < number - (_LATE if trace.awaits_exception_line else _GOES_ON):
                self._end(writer)
        if number > self._until:
            self._tails.clear()

    def _add_tail(self, row: LogLine) -> bool:
        """Add a line to the statement above it; return whether it is not a statement of its own."""
        event = self._tails.get(row.writer)
        if event is None:
            return False
        are_stamped_alike = (
            row.has_timestamp_but_no_level_or_call_site and event.log_line.has_timestamp_but_no_level_or_call_site
        )
        is_other = row.has_prefix and bool(row.clock) and not are_stamped_alike
        is_end = is_other or row.level != NO_LEVEL or len(event.tail) >= _TAIL
        if not is_end and not event.names_exception:
            is_end = rate_failure_certainty(row) >= STATED_FAILURE or self._catalogue.has_match(row.body)
        if is_end:
            del self._tails[row.writer]
            return False
        event.tail.append((row.number, row.body.strip()))
        is_explanation = _NCCL_RESULT.match(row.body) or parse_leading_exception_name(row.body) is None
        return event.names_exception and bool(is_explanation)

    def _state(self, row: LogLine) -> None:
        panic, self._panic = self._panic, None
        if _SOURCE.match(row.body) or _SPEECH.match(row.body):
            return
        if _PANIC.search(row.body):
            self._panic = row
            return
        strong = CERTAIN_FAILURE if panic and row.number <= panic.number + 1 else rate_failure_certainty(row)
        if not strong and not self._catalogue.has_match(row.body):
            return
        event = make_line_event(row, max(strong, 1), names_exception=bool(parse_leading_exception_name(row.body)))
        self._keep(event)
        if "Fatal Python error" in row.body:
            self._fault = event
        self._tails[row.writer] = event

    def _complete(self, event: FailureEvent) -> None:
        event.log_index = self._file
        event.block_first_line_and_byte = self._block.first_number, self._block.first_byte
        event.nearest_clock = "" if event.log_line.clock else self._clock
        event.step_like_lines_above = self._around.step_like_lines_above.get(event.first_number, ())
        if len(self.read.events) < _WITH_LINES_ABOVE:
            event.lines_above = self._around.get_space_joined_lines_above(event.first_number)
        if self._excused:
            heads = [(event.first_number, event.log_line.text)]
            heads += ((one.number, one.full_line) for one in event.exceptions)
            event.is_declared_harmless = any(self._excused(number, text) for number, text in heads)

    def _keep(self, event: FailureEvent) -> None:
        self._complete(event)
        key = (event.writer, _DIGITS.sub("0", event.text)[:160])
        alike = self._alike.get(key)
        if alike is not None:
            alike.count, alike.last_repeat_line = alike.count + 1, event.main_line_number
            if alike.count > 3 or not (alike.exceptions and event.exceptions):
                return
        if len(self._alike) < MAX_EVENTS:
            self._alike.setdefault(key, event)
        if len(self.read.events) >= MAX_EVENTS:
            del self.read.events[MAX_EVENTS // 2]
        self.read.events.append(event)

    def _keep_lines_of_specific_signatures(self) -> None:
        for number, text in self._around.list_lines(1, _EXCERPT + 1):
            for row in _split_lines(number, text):
                event = make_line_event(row, POSSIBLE_FAILURE)
                self._complete(event)
                if any(not one.signature.has_generic_remedy for one in self._catalogue.match_event(event)):
                    self._keep(event)

    def _mark(self, block: LineBlock) -> None:
        """Keep the first marks of a block and the last ones."""
        pattern, lines = compile_progress_prefilter(), block.joined
        matches = iterate_matching_line_indexes(pattern, lines)
        indexes = list(itertools.islice(matches, _FIRST_MARKS))
        if len(indexes) == _FIRST_MARKS:
            tail = lines.find(b"\n", len(lines) - _LAST_BYTES) + 1
            last = list(iterate_matching_line_indexes(pattern, lines, tail)) or deque(matches, maxlen=_FIRST_MARKS)
            indexes += [index for index in last if index > indexes[-1]]
        for index in indexes:
            self._add_mark(block, index)

    def _add_mark(self, block: LineBlock, index: int) -> None:
        number, text = block.first_number + index, block[index]
        row = parse_line(number, text[:_MARKED])
        if sign := find_progress_sign(text) or find_progress_sign(row.body.strip()):
            if len(self.read.progress_marks) >= _MARKS:
                del self.read.progress_marks[_MARKS // 2]
            clock = row.clock or _find_clock_at_or_above(block, index, lines=20)
            mark = ProgressMark(number, sign, text[:_MARKED], clock, row.writer, row.rank, row.host)
            self.read.progress_marks.append(mark)


def _find_clock_at_or_above(block: LineBlock, index: int, lines: int) -> str:
    """Return the time of a line, or of the nearest of the lines above it that has one; empty when none has."""
    for place in range(index, max(-1, index - lines), -1):
        if clock := parse_line(block.first_number + place, block[place][:_MARKED]).clock:
            return clock
    return ""


def _split_lines(number: int, text: str) -> list[LogLine]:
    """Return the line, or the lines written as one with `\\n`, or the states of a rewritten line."""
    if "\\n" not in text or _WRITTEN not in text:
        states = [part for part in text.split("\r") if part.strip()] if "\r" in text else []
        return [parse_line(number, part) for part in states or [text]]
    whole = parse_line(number, text)
    *lines, last = text.replace('\\"', '"').split("\\n")
    rows = (parse_line(number, part) for part in (*lines, _BEHIND_TEXT.sub("", last)))
    return [replace(row, writer=whole.writer, level=whole.level, clock=whole.clock) for row in rows]


class LogReader:
    def __init__(self, events: EventReader) -> None:
        self.events = events
        self.offset = self.lines = 0
        self._partial_line = b""
        self._partial_line_offset = 0

    def feed(self, data: bytes) -> None:
        end = data.rfind(b"\n") + 1
        if end:
            self._hand_over(self._partial_line + data[: end - 1])
            self._partial_line, self._partial_line_offset = b"", self.offset + end
        self.offset += len(data)
        line = self._partial_line + data[end:]
        # a terminal shows the last states of a line; without any, bytes beyond the limit are payload
        self._partial_line = line[-LINE_LIMIT:] if b"\r" in line[-LINE_LIMIT:] else line[:LINE_LIMIT]

    def close(self) -> LogEvents:
        if self._partial_line:
            self._hand_over(self._partial_line)
        return self.events.close()

    def _hand_over(self, lines: bytes) -> None:
        count = lines.count(b"\n") + 1
        self.events.feed(LineBlock(lines, count, self.lines + 1, self._partial_line_offset))
        self.lines += count
