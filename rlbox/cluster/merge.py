"""Lines of several nodes in the order in which they were written, whatever the nodes' clocks say."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

_DATED = re.compile(r"\[?(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_AHEAD_S = 5.0
"""A line that says to be from later than its log was written is not believed."""


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """A line of a node's log; `at` in seconds since 1970 by the clock of this machine."""

    at: float
    node: str
    file: str
    text: str

    def shown(self) -> str:
        """Return it with its time (UTC), node and log before it."""
        moment = datetime.fromtimestamp(self.at, timezone.utc)
        return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d} {self.node} {self.file}: {self.text}"


def dated(text: str) -> float | None:
    """Return the time that a line begins with, in UTC, as programs of Ray's in a container write it."""
    found = _DATED.match(text)
    if not found:
        return None
    try:
        year, month, day, hour, minute, second = map(int, found.groups()[:6])
        moment = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
    except ValueError:
        return None
    return (moment + timedelta(seconds=float(f"0.{found[7] or 0}"))).timestamp()


class LogClock:
    """The time of each line of one log: its own, else that of the line before it.

    Parameters
    ----------
    offset
        Seconds that the node's clock is ahead of this machine's.
    """

    def __init__(self, node: str, file: str, offset: float) -> None:
        self._node, self._file, self._offset = node, file, offset
        self._last: float | None = None

    def lines(self, text: str, written: float) -> list[LogLine]:
        """Return the lines of a text whose last was written at `written` by the node's clock.

        Lines before the first that has a time have that of it; of a text without any all are of when it was written.
        """
        rows = text.splitlines()
        own = [self._believed(row, written) for row in rows]
        if self._last is None:
            self._last = next((at for at in own if at is not None), written)
        elif not any(own):  # it says none: what it gained is new
            self._last = max(self._last, written)
        found = []
        for row, at in zip(rows, own, strict=True):
            self._last = max(self._last, at) if at is not None else self._last
            found.append(LogLine(at=self._last - self._offset, node=self._node, file=self._file, text=row))
        return found

    def _believed(self, row: str, written: float) -> float | None:
        at = dated(row)
        return at if at is not None and at <= written + _AHEAD_S else None


def merged(lines: Iterable[LogLine]) -> list[LogLine]:
    """Return lines by time; those of one log stay in their order."""
    return sorted(lines, key=lambda line: line.at)
