"""A traceback as it stands in logs: its frames, the exceptions it names, and how they led to each other.

Python's own, those that Ray and multiprocessing quote of other processes, groups of exceptions, and what is left of one
whose head or indent was lost on the way.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from rlbox.diagnose.lines import LogLine
from rlbox.diagnose.patterns import expand_pattern_placeholders

MAX_FRAMES = 400
MAX_TAIL_LINES = 24
_MOST_SUMMARY = 160
"""Lines behind an exception that lists the processes which failed."""
_MOST_LINES = 4000
_BLANKS = 3

TRACEBACK_HEAD = re.compile(r"Traceback \(most recent call last\)")
FRAME_LINE = re.compile(r'^\s*File "([^"\n]{1,400})", line \d+(?:, in (.{1,200}))?')
_GROUP = re.compile(r"^\s*(?:\| ?|\+[-+]+ ?\d* ?[-+]*)+")
_REMOTE = re.compile(r"ray::[\w.:<>\[\] -]{1,200}\(\) ?\(pid=|ray::[\w.:-]{1,200} \(pid=")
_LINKS = (
    ("The above exception was the direct cause of the following exception:", "cause"),
    ("During handling of the above exception, another exception occurred:", "context"),
)
_RAISED = re.compile(expand_pattern_placeholders(r"^(<NAME>)(?:\((.{0,200}?)\))?(?:: ?(.*))?$"))
_ANY_RAISED = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z_]\w*)(?:: (.*)|:?)$")
_NO_NAME = re.compile(r"^(?:INFO|WARNING|WARN|DEBUG|NOTICE|NOTE|Note|ERROR|CRITICAL|FATAL|None|True|False)\b")
_CARETS = re.compile(r"^\s*[\^~]+\s*$")
_QUOTES = re.compile(r"^\s*(?:\"\"\"|''')\s*$")
LineNumberAndText = tuple[int, str]


@dataclass(slots=True)
class StackFrame:
    file: str
    function: str
    code: str = ""  # the source line below


@dataclass(slots=True)
class RaisedException:
    """One exception that a traceback names, at line `number`; `tail` are the further lines of its message.

    `chain_kind` says how it relates to the one before: `cause`, `context`, or empty. `frames` are those since the one
    before. `quotes_other`: the traceback that it quotes follows. `full_line` is its line as it is in the log.
    """

    number: int
    name: str
    text: str
    chain_kind: str = ""
    tail: list[LineNumberAndText] = field(default_factory=list)
    frames: list[StackFrame] = field(default_factory=list)
    quotes_other: bool = False
    clock: str = ""
    full_line: str = ""

    @property
    def class_name(self) -> str:
        return self.name.rpartition(".")[2]


class OneTracebackParser:
    def __init__(self, row: LogLine, *, headless: bool = False) -> None:
        self.first_number = self.last = row.number
        self.head = row
        self.is_headless = headless
        self.exceptions: list[RaisedException] = []
        self.prefixed = False
        self.has_only_timestamp_prefix = False
        self.is_muted = False
        self.closed = False
        self.lines = 0
        self.other_lines: deque[LogLine] = deque(maxlen=MAX_TAIL_LINES)
        """The last lines above an exception's that are no frames: source, and what was written in between."""
        self._frames: list[StackFrame] = []
        self._link = ""
        self._indent = -1
        self._within = True  # between a head and the line that names the exception
        self._blank = 0
        self._levelled = False
        if headless:
            self.try_add_line(row)

    @property
    def is_forwarded_at_info_or_debug(self) -> bool:
        """Whether another process's output is logged line by line, at a level that says nothing of it."""
        return self._levelled and self.head.level in (0, 1)

    @property
    def awaits_exception_line(self) -> bool:
        """Whether no exception is named below its last frames yet."""
        return self._within

    @classmethod
    def start_at_exception_line(cls, line: LogLine) -> OneTracebackParser:
        """Return a traceback that continues behind a line which names an exception, without frames."""
        trace = cls(line)
        if found := _RAISED.match(line.body.strip()):
            trace._raise(line, found.group(1), line.body.strip())
        trace.prefixed = line.has_prefix
        return trace

    def try_add_line(self, line: LogLine) -> bool:
        self.lines += 1
        if self.lines > _MOST_LINES:
            return self._close()
        body = line.body
        if not body.strip():
            self._blank += 1
            self.closed = self._blank > _BLANKS and not self._within
            return not self.closed
        taken = self._take(line, _GROUP.sub("", body).rstrip(" |") if body.lstrip()[:1] in ("|", "+") else body)
        if taken:
            self.last, self._blank = line.number, 0
            self.prefixed = self.prefixed or line.has_prefix
        return taken

    def _take(self, row: LogLine, body: str) -> bool:
        stripped = body.strip()
        if link := next((kind for text, kind in _LINKS if stripped.startswith(text)), ""):
            self._link, self._within = link, True
            return True
        if found := FRAME_LINE.match(body):
            if not self._within and not self._link and not self._goes_on():
                return self._close()
            self._within, self.has_only_timestamp_prefix = True, row.has_timestamp_but_no_level_or_call_site
            self._levelled = row.level == self.head.level
            if len(self._frames) < MAX_FRAMES:
                self._frames.append(StackFrame(found.group(1), (found.group(2) or "").strip()))
            self._indent = len(body) - len(body.lstrip())
            return True
        if TRACEBACK_HEAD.search(body):
            return self._take_head(row, stripped)
        if self._within:
            return self._take_within(row, body, stripped)
        return self._take_behind(row, body, stripped)

    def _goes_on(self) -> bool:
        return bool(self.exceptions) and self.exceptions[-1].quotes_other

    def _close(self) -> Literal[False]:
        self.closed = True
        return False

    def _take_head(self, row: LogLine, stripped: str) -> bool:
        named = _RAISED.match(stripped.partition("Traceback (most")[0].rstrip(" :") + ":")
        if self._within and named and named.group(1):
            self._raise(row, named.group(1), stripped, quotes=True)
        elif not self._within and not self._link and not self._goes_on() and self.exceptions:
            return self._close()
        self._within, self._indent = True, -1
        return True

    def _take_within(self, row: LogLine, body: str, stripped: str) -> bool:
        if _CARETS.match(body) or _QUOTES.match(body) or _REMOTE.match(stripped):
            return True
        indent = len(body) - len(body.lstrip())
        found = _RAISED.match(stripped)
        torn = self.is_headless and len(self._frames) == 1 and bool(found)  # the indent of its first line is lost
        outer = self._indent < 0 or indent < self._indent or (indent == self._indent == 0) or torn
        if not found and outer and not _NO_NAME.match(stripped):
            found = _ANY_RAISED.match(stripped) if indent < max(self._indent, 1) else None
        if found and outer and (self._frames or not self.exceptions or self._link or self.exceptions[-1].quotes_other):
            self._raise(row, found.group(1), stripped)
            return True
        if self._frames and not self._frames[-1].code:
            self._frames[-1].code = stripped
        self.other_lines.append(row)
        if not self._frames and self.lines > 3 and row.has_prefix != self.head.has_prefix:
            return self._close()
        return True

    def _raise(self, row: LogLine, name: str, text: str, *, quotes: bool = False) -> None:
        raised = RaisedException(row.number, name, text, self._link, [], self._frames, quotes, row.clock, row.text)
        raised.quotes_other = quotes or bool(_REMOTE.search(text))
        self.exceptions.append(raised)
        self._frames, self._link = [], ""
        self._within = raised.quotes_other

    def _take_behind(self, row: LogLine, body: str, stripped: str) -> bool:
        last = self.exceptions[-1] if self.exceptions else None
        if last is None or self._is_other(row):
            return self._close()
        if len(last.tail) >= (_MOST_SUMMARY if last.class_name == "ChildFailedError" else MAX_TAIL_LINES):
            return self._close()
        last.tail.append((row.number, stripped))
        return True

    def _is_other(self, row: LogLine) -> bool:
        """Whether a line behind the exception is another statement of the same process."""
        if row.follows_progress_bar:
            return True
        is_stamped_alike = self.has_only_timestamp_prefix and row.has_timestamp_but_no_level_or_call_site
        if row.has_prefix and (row.clock or row.logging_call_site) and not is_stamped_alike:
            same = row.logging_call_site == self.head.logging_call_site and bool(row.logging_call_site)
            return not (same and self.prefixed)
        return row.has_prefix != self.head.has_prefix and bool(self._blank)


def parse_leading_exception_name(text: str) -> str | None:
    found = _RAISED.match(text.strip())
    return found.group(1) if found else None


def is_exception_chain_line(body: str) -> bool:
    return body.strip().startswith(tuple(text for text, _ in _LINKS))


def is_traceback_head_or_frame(body: str) -> bool:
    return bool(TRACEBACK_HEAD.search(body)) or bool(FRAME_LINE.match(body))
