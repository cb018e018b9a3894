"""Follow Python tracebacks to the line that names the exception, each process's lines apart from the others'."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlbox.causes.fatal_lines import grade, has_quiet_level, is_benign, lane

_LINES = 2000
"""Lines of its own after which a traceback is given up."""
_LOG_LINES = 10_000
"""Lines of the log after which one is: a rank that died while it wrote would be waited for to the end of the log."""
_LANES = 256
_NAME = r"(?:[A-Za-z_]\w*\.)*(?:_?[A-Z]\w*|\w*(?:error|exception|timeout))"
_HEAD = re.compile(r"Traceback \(most recent call last\)")
_FRAME = re.compile(r'  File "')
_RAISED = re.compile(rf"^{_NAME}(?:\(.*?\))?(?::\s.*|:)?$")
_LEVEL_WORD = re.compile(r"^(?:INFO|WARNING|WARN|DEBUG|NOTICE|NOTE|Note)\b")


@dataclass(frozen=True, kw_only=True)
class Raised:
    """A traceback's end: whose it is, the number and text of its first line, and whether it is one to be ignored."""

    lane: str
    begun: int
    head: str
    benign: bool


class Tracebacks:
    """The tracebacks that are open in one log: at most one of each lane (process, rank)."""

    def __init__(self) -> None:
        self._open: dict[str, _Traceback] = {}
        self._last = ""

    @property
    def open(self) -> bool:
        """Whether lines of a traceback are still to come."""
        return bool(self._open)

    @property
    def earliest(self) -> int:
        """The line number where the oldest open traceback began; 0 when none is open."""
        return min((found.begun for found in self._open.values()), default=0)

    def expire(self, number: int) -> None:
        """Give up, at the line `number`, what began too long ago."""
        if self._open and self.earliest < number - _LOG_LINES:
            self._open = {lane: found for lane, found in self._open.items() if found.begun >= number - _LOG_LINES}

    def begin(self, number: int, text: str, bare: str, before: str) -> bool:
        """Return whether a traceback begins at this line; `before` is the line above it."""
        if not _HEAD.search(bare):
            return False
        if len(self._open) >= _LANES:
            del self._open[next(iter(self._open))]
        self._open.pop(lane(text), None)  # the one opened last comes last
        self._open[lane(text)] = _Traceback(number, bare, before)
        return True

    def owner(self, text: str) -> str | None:
        """Return the lane of the open traceback that a line may belong to, or None.

        A line that names no process belongs to the traceback without a lane, or to the one that began last of those
        whose lines do not name theirs either: some loggers put their prefix before the first line only.
        """
        own = lane(text)
        if own not in self._open and "" in self._open and not self._open[""].lines and _FRAME.search(text):
            self._open[own] = self._open.pop("")  # its first line was written without the prefix
        if own or own in self._open:
            return own if own in self._open else None
        return next((lane for lane in reversed(self._open) if not self._open[lane].prefixed), None)

    def take(self, owner: str, number: int, text: str, bare: str) -> Raised | None:
        """Give the traceback of the lane `owner` its next line; return the end when the line names the exception."""
        found = self._open[owner]
        if _HEAD.search(bare):
            self.begin(number, text, bare, found.before)
            return None
        found.prefixed = found.prefixed or bool(owner and lane(text))
        raised = found.take(bare)
        if found.closed:
            del self._open[owner]
        if not raised:
            return None
        return Raised(lane=owner, begun=found.begun, head=found.head, benign=found.benign or is_benign(raised))


class _Traceback:
    def __init__(self, number: int, bare: str, before: str) -> None:
        self.begun = number
        self.head = bare
        self.before = before
        self.closed = False
        self.prefixed = False
        self.benign = has_quiet_level(bare[: bare.index("Traceback (")]) or is_benign(before)
        self._column = -1
        self.lines = 0

    def take(self, text: str) -> str:
        """Return the line without its prefix when it names the exception, else an empty text."""
        self.lines += 1
        if self._column < 0 and _FRAME.search(text):
            self._column = text.index("  File ")  # the lines below a prefixed first line may have the prefix or not
        content = text[self._column :] if 0 < self._column < len(text) else text
        self.closed = self.lines > _LINES
        if not _RAISED.match(content) or _LEVEL_WORD.match(content) or not content.strip():
            return ""
        if content.rstrip().endswith("raised:"):
            return ""  # torch names the real exception on the next line
        self.closed = grade(content) != "wrapper"
        return content
