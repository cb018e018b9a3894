"""Find the first fatal line of a log: the one that an expert would point at, not the wrappers that follow it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlbox.causes.fatal_lines import (
    Grade,
    Scan,
    grade,
    is_earlier,
    is_quiet,
    lane,
    last_shown,
    lives_on,
    may_be_fatal,
    quoted_tail,
    said_at,
)
from rlbox.causes.tracebacks import Raised, Tracebacks
from rlbox.logs.lines import bare_text

_WINDOW = 1000
"""Lines below a fatal one in which another process may still show that it failed earlier: ranks write interleaved."""
_WRAPPED = 100_000
"""Lines below a wrapper in which what it wraps may still come."""
_RANKS: dict[Grade, int] = {"fatal": 0, "noticed": 1, "wrapper": 2}

Benign = Callable[[int, str], bool]
"""Whether a line, given by number and text, is declared harmless."""


@dataclass(frozen=True, kw_only=True)
class FatalSpot:
    """The first fatal line of a log, and where it is.

    `number` counts from 1. The line numbered `block_number` begins at byte `block_offset` of the log, a block of
    `files/act/tail.py` before `number` at most, so that the line is found by a seek. `said_at` is the time that the
    line states itself, as it is written there.
    """

    number: int
    text: str
    block_number: int
    block_offset: int
    grade: Grade = "fatal"
    lane: str = ""
    said_at: str = ""


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    spot: FatalSpot
    begun: int

    def precedes(self, other: _Candidate) -> bool:
        """Whether this one, met later, is the earlier failure."""
        mine, others = self.spot, other.spot
        if mine.grade != others.grade:
            told_more = _RANKS[mine.grade] < _RANKS[others.grade]
            return told_more and (others.grade == "wrapper" or mine.lane != others.lane)
        if is_earlier(mine.said_at, others.said_at):
            return True
        later = is_earlier(others.said_at, mine.said_at)
        return not later and mine.lane != others.lane and self.begun < other.begun


class FirstFatal:
    """Looks for the first fatal line of one log while it grows, in flat memory.

    A Python traceback is named by its exception line. Wrappers, which report that something else failed, are taken
    only when there is nothing else. Of several ranks the one that failed first is named: by the times that the lines
    state, else by where its traceback began; one that only noticed that others are gone comes last. What is quoted of
    a helper's log counts until its owner says that it started without it. The same lines give the same answer however
    they are cut into blocks.
    """

    def __init__(self, benign: Benign | None = None) -> None:
        self._benign = benign
        self._tracebacks = Tracebacks()
        self._best: _Candidate | None = None
        self._quoted: _Candidate | None = None
        self._quote_ends = 0
        self._above = ""
        self._block = (1, 0)
        self.settled = False
        """Whether nothing that may still come can change the answer."""

    @property
    def spot(self) -> FatalSpot | None:
        """The first fatal line of all that was taken, None when nothing looks fatal."""
        found = self._first
        return found.spot if found else None

    @property
    def _first(self) -> _Candidate | None:
        if self._quoted and self._best:
            return self._best if self._best.precedes(self._quoted) else self._quoted
        return self._best or self._quoted

    def take(self, first: int, offset: int, texts: Sequence[str]) -> None:
        """Look at the next lines, the first of which has the number `first` and begins at byte `offset` of the log."""
        if self.settled or not texts:
            return
        self._block = (first, offset)
        scan = Scan(texts)
        index = 0
        while index < len(texts):
            if self._tracebacks.open:
                index = self._follow(first, texts, index)
                scan.skip(index)
                continue
            hit = scan.next()
            if hit < 0 or self._settle(first + hit):
                break
            self._see(first + hit, texts[hit], self._line_above(texts, hit, index))
            index = hit + 1
        self._above = (self._line_above(texts, len(texts), index) if index else last_shown(texts)) or self._above
        self._settle(first + len(texts))

    def forgive(self) -> None:
        """Forget what was met so far: the process has shown that it lives with it."""
        self._best, self.settled, self._tracebacks = None, False, Tracebacks()
        self._quoted = None

    def _line_above(self, texts: Sequence[str], index: int, start: int) -> str:
        """Return the last line before `index` that is not blank, none before `start` being looked at again."""
        for at in range(index - 1, start - 1, -1):
            if texts[at].strip():
                self._above = texts[at]
                break
        return self._above

    def _follow(self, first: int, texts: Sequence[str], index: int) -> int:
        """Look at every line while a traceback is open; return the index of the first that is to be searched for."""
        while index < len(texts):
            self._tracebacks.expire(first + index)
            if not self._tracebacks.open or self._settle(first + index):
                break
            if texts[index].strip():
                self._see(first + index, texts[index], self._above)
            index += 1
        return len(texts) if self.settled else index

    def _see(self, number: int, text: str, above: str) -> None:
        bare = bare_text(text)
        if self._is_told(number, bare):
            return
        owner = self._tracebacks.owner(text) if self._tracebacks.open else None
        if owner is not None:
            raised = self._tracebacks.take(owner, number, text, bare)
            if raised and not raised.benign:
                self._offer(number, text, bare, raised)
        elif not self._tracebacks.begin(number, text, bare, above) and not is_quiet(bare) and may_be_fatal(text):
            self._offer(number, text, bare, None)
        self._above = text if owner is None else self._above

    def _is_told(self, number: int, bare: str) -> bool:
        """Whether a line is about a quoted tail: it begins one, or says that it was nothing."""
        if lines := quoted_tail(bare):
            self._quote_ends = number + lines
        elif lives_on(bare):
            self._quoted, self._quote_ends = None, 0
        else:
            return False
        return True

    def _offer(self, number: int, text: str, bare: str, raised: Raised | None) -> None:
        if self._benign and (self._benign(number, text) or (raised and self._benign(raised.begun, raised.head))):
            return
        spot = FatalSpot(
            number=number,
            text=text.strip(),
            block_number=self._block[0],
            block_offset=self._block[1],
            grade=grade(bare),
            lane=raised.lane if raised else lane(text),
            said_at=said_at(text) or (said_at(raised.head) if raised else ""),
        )
        candidate = _Candidate(spot=spot, begun=raised.begun if raised else number)
        if number <= self._quote_ends:
            self._quoted = self._quoted or candidate
        elif self._best is None or candidate.precedes(self._best):
            self._best = candidate

    def _settle(self, number: int) -> bool:
        """Return whether the line `number` and all after it come too late to matter."""
        best = self._first
        if best and number > best.spot.number + (_WINDOW if best.spot.grade != "wrapper" else _WRAPPED):
            earliest = self._tracebacks.earliest
            self.settled = not earliest or earliest > best.begun
        return self.settled
