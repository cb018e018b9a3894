"""Prefixes of which no family knows, learnt from a traceback: what stands before its head stands before its frames.

Where the head was cut off, what stands before one frame stands before the next.

Without this a traceback behind a prefix that nobody has seen is none: it has no frames, and so no exception.
"""

from __future__ import annotations

import re
from dataclasses import replace

from rlbox.diagnose.read.line import LogRow
from rlbox.diagnose.read.trace import FRAME

_HEAD = "Traceback (most recent call last)"
_FRAME = '  File "'
_LONGEST = 120
_WITHIN = 8
"""Lines, those of others counted, within which a frame must follow behind the same prefix."""
_MOST = 8
_QUOTES = re.compile("[\"'{`]")
_DIGITS = re.compile(r"\d+")


class ForeignPrefixes:
    """Those of one log, as far as its tracebacks showed them."""

    def __init__(self) -> None:
        self._known: list[re.Pattern[str]] = []
        self._guess: tuple[re.Pattern[str], int] | None = None

    def without(self, row: LogRow) -> LogRow:
        """Return a line without such a prefix."""
        for pattern in self._known:
            if found := pattern.match(row.body):
                return replace(row, body=row.body[found.end() :])
        if self._guess:
            pattern, last = self._guess
            found = pattern.match(row.body)
            if found and not FRAME.match(row.body[found.end() :]):
                found = None
            if found or row.number > last:
                self._guess = None
            if found:
                self._known = [*self._known, pattern][-_MOST:]
                return replace(row, body=row.body[found.end() :])
        self._learn(row)
        return row

    def _learn(self, row: LogRow) -> None:
        before, head, _ = row.body.partition(_HEAD)
        if not head and ", line " in row.body:
            before, head, _ = row.body.partition(_FRAME)
        if head and before.strip() and len(before) <= _LONGEST and not _QUOTES.search(before):
            self._guess = _pattern(before), row.number + _WITHIN


def _pattern(prefix: str) -> re.Pattern[str]:
    """Return the expression of a prefix whose numbers change, and whose last blanks an empty line lacks."""
    told = r"\d+".join(re.escape(part) for part in _DIGITS.split(prefix.strip()))
    blanks = re.escape(prefix[len(prefix.rstrip()) :])
    return re.compile(rf"\s*{told}(?:{blanks}|$)")
