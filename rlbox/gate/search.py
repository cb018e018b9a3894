"""Search the blocks of one log for all that a gate waits for, touching only lines that hit."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from rlbox.gate.quotes import Quotes
from rlbox.gate.watcher import Watcher
from rlbox.logs.lines import Line, Texts, views
from rlbox.logs.patterns import PatternSet, pattern_set

Where = Literal["lines", "states", "hidden"]
WHERE: tuple[Where, ...] = ("lines", "states", "hidden")


class LogSearch:
    """All watchers of one log; those that are done are searched for no more, so that hits become rare."""

    def __init__(self, watchers: Iterable[Watcher], quotes: Quotes) -> None:
        self._watchers = list(watchers)
        self._quotes = quotes
        self._choose()
        self.last = ""

    def take(self, first: int, texts: Texts) -> None:
        """Look at the lines of a block; the first has the number `first`."""
        lines = ((index, 1, text) for index, text in self._line_hits(texts))
        for index, ended, text in heapq.merge(lines, self._past_hits(texts)) if texts.past else lines:
            self._meet(Line(number=first + index, text=text.strip()), text, "lines" if ended else "states")
        if texts.hidden:
            for index, text in _hits(lambda: self._sets["hidden"], texts.hidden_joined, len(texts.hidden)):
                number = first + texts.hidden[index][0]
                self._meet(Line(number=number, text=text.strip()), text, "hidden")
        self.last = _last_shown(texts.joined) or self.last

    @property
    def searches(self) -> tuple[str, ...]:
        """The expressions that are still looked for, without anchors; the same object as long as nothing changes."""
        return self._sets["lines"].loose if self._sets["lines"] else ()

    def _line_hits(self, texts: Texts) -> Iterator[tuple[int, str]]:
        if texts.hits is None:
            return _hits(lambda: self._sets["lines"], texts.joined, len(texts))
        return ((index, texts[index]) for index in texts.hits if self._sets["lines"])

    def _past_hits(self, texts: Texts) -> list[tuple[int, int, str]]:
        hits = _hits(lambda: self._sets["states"], texts.past_joined, len(texts.past))
        return [(texts.past[index][0], 0, text) for index, text in hits]

    def _meet(self, line: Line, text: str, where: Where) -> None:
        patterns = self._sets[where]
        if patterns is None:
            return
        fits: dict[int, str] = {}
        ways = views(text)
        if self._quotes.fits(ways):
            return
        for way in ways:
            for index in patterns.which(way):
                fits.setdefault(index, way)
        if not fits:
            return
        live = [watcher for watcher in self._watchers if _looks(watcher, where)]
        for index in sorted(fits):
            if live[index].marks or live[index].whole or not self._quotes.is_open(line):
                live[index].met(line, fits[index])
        if any(watcher.done for watcher in live):
            self._watchers = [watcher for watcher in self._watchers if not watcher.done]
            self._choose()

    def _choose(self) -> None:
        self._sets: dict[Where, PatternSet | None] = {}
        for where in WHERE:
            texts = tuple(watcher.pattern for watcher in self._watchers if _looks(watcher, where))
            self._sets[where] = pattern_set(texts) if texts else None


def _looks(watcher: Watcher, where: Where) -> bool:
    return where == "lines" or (watcher.rewritten if where == "states" else watcher.whole)


def _hits(patterns: Callable[[], PatternSet | None], block: bytes, count: int) -> Iterator[tuple[int, str]]:
    """Yield index and text of the lines in which something may fit; `patterns` may become fewer meanwhile."""
    at = index = 0
    while count and (search := patterns()) is not None:
        found = search.hit(block, at)
        if found < 0:
            return
        begin = block.rfind(b"\n", at, found) + 1 or at
        end = block.find(b"\n", found)
        index += block.count(b"\n", at, found)
        yield index, block[begin : end if end >= 0 else len(block)].decode("utf-8", "replace")
        if end < 0:
            return
        at, index = end + 1, index + 1


def _last_shown(block: bytes) -> str:
    end = len(block)
    while end > 0:
        begin = block.rfind(b"\n", 0, end) + 1
        if text := block[begin:end].strip():
            return text.decode("utf-8", "replace")
        end = begin - 1
    return ""
