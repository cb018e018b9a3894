"""Logs of all nodes as one: lines in the order of time, each clock's offset taken off."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

_TIME = re.compile(r"\[?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[,.](\d{1,6}))?")


@dataclass(frozen=True, kw_only=True, order=True)
class NodeLine:
    """A line of a log; `at` seconds since 1970 on this machine's clock, `number` its place among all that were read."""

    at: float
    number: int
    node: str
    file: str
    text: str


def time_of(text: str) -> float | None:
    """Return the time that a line of Ray begins with, as its node's clock had it (UTC); None where there is none."""
    found = _TIME.match(text)
    if found is None:
        return None
    try:
        moment = datetime.fromisoformat(f"{found[1]} {found[2]}").replace(tzinfo=timezone.utc)
    except ValueError:
        return None
    return moment.timestamp() + float(f"0.{found[3] or 0}")


class Dated:
    """Gives lines their time: their own, else that of the line before them in their log, else when they came."""

    def __init__(self, offsets: Mapping[str, float]) -> None:
        self._offsets = dict(offsets)
        self._last: dict[tuple[str, str], float] = {}
        self._number = 0

    def lines(self, node: str, file: str, texts: Iterable[str], came: float) -> Iterator[NodeLine]:
        """Yield lines of one log; `came` is the node's clock when they were read."""
        offset = self._offsets.get(node, 0.0)
        for text in texts:
            own = time_of(text)
            at = own - offset if own is not None else self._last.get((node, file), came - offset)
            self._last[node, file] = at
            self._number += 1
            yield NodeLine(at=at, number=self._number, node=node, file=file, text=text)


class Merge:
    """Holds lines back for a moment, so that those of another node that are earlier come first."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._waiting: list[tuple[float, int, float, NodeLine]] = []

    def put(self, line: NodeLine, now: float) -> None:
        """Take a line that came at `now`."""
        heapq.heappush(self._waiting, (line.at, line.number, now, line))

    def ready(self, now: float) -> Iterator[NodeLine]:
        """Yield the lines that have waited long enough, in order, with those that are earlier."""
        due = [row for row in self._waiting if now - row[2] >= self._patience_s]
        last = max(((row[0], row[1]) for row in due), default=None)
        while last and self._waiting and self._waiting[0][:2] <= last:
            yield heapq.heappop(self._waiting)[3]

    def rest(self) -> Iterator[NodeLine]:
        """Yield all that is left, in order."""
        while self._waiting:
            yield heapq.heappop(self._waiting)[3]


def shown(line: NodeLine, width: int) -> str:
    """Return a line as it is printed: node and log before it."""
    return f"{line.node:{width}}  {line.file}: {line.text}"
