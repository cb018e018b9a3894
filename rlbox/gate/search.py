"""Search the blocks of one log for all that a gate waits for, touching only lines that hit."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from rlbox.gate.log_context import LineMatcher, ModelTextFilter, StepTracker
from rlbox.logs.lines import Line, LineBlock, list_line_variants
from rlbox.logs.patterns import PatternSet, compile_pattern, compile_pattern_set
from rlbox.logs.progress import STEP_LINE

Where = Literal["lines", "states", "hidden"]
WHERE: tuple[Where, ...] = ("lines", "states", "hidden")

_MOST, _A_SECOND = 256, 50
"""Lines with steps that are read while no line is in doubt: at once, and a second; one costs far more than a search."""
_LAST = 4
"""Lines at the end of a block that are among them."""


class LogSearch:
    """All watchers of one log; those that are done are searched for no more, so that hits become rare.

    `steps` learns of the steps that the log tells of; of all that a block holds where `in_doubt`.
    """

    def __init__(
        self,
        watchers: Iterable[LineMatcher],
        quotes: ModelTextFilter,
        steps: StepTracker | None,
        in_doubt: Callable[[], bool],
    ) -> None:
        self._watchers = list(watchers)
        self._quotes = quotes
        self._steps = _StepLines(steps, quotes) if steps else None
        self._in_doubt = in_doubt
        self._choose()
        self.last = ""

    def take(self, first: int, texts: LineBlock) -> None:
        if self._steps:
            self._steps.begin(first, texts)
        lines = ((index, 1, text) for index, text in self._line_hits(texts))
        for index, ended, text in heapq.merge(lines, self._past_hits(texts)) if texts.rewritten_lines else lines:
            self._meet(Line(number=first + index, text=text.strip()), text, "lines" if ended else "states")
        if texts.hidden_texts:
            for index, text in _hits(lambda: self._sets["hidden"], texts.hidden_joined, len(texts.hidden_texts)):
                number = first + texts.hidden_texts[index][0]
                self._meet(Line(number=number, text=text.strip()), text, "hidden")
        if self._steps:
            self._steps.end(every=self._in_doubt())
        self.last = _last_shown(texts.joined) or self.last

    @property
    def searches(self) -> tuple[str, ...]:
        """The expressions that are still looked for, without anchors; the same object as long as nothing changes."""
        return self._sets["lines"].loose if self._sets["lines"] else ()

    def _line_hits(self, texts: LineBlock) -> Iterator[tuple[int, str]]:
        if texts.hits is None:
            return _hits(lambda: self._sets["lines"], texts.joined, len(texts))
        return ((index, texts[index]) for index in texts.hits if self._sets["lines"])

    def _past_hits(self, texts: LineBlock) -> list[tuple[int, int, str]]:
        hits = _hits(lambda: self._sets["states"], texts.past_joined, len(texts.rewritten_lines))
        return [(texts.rewritten_lines[index][0], 0, text) for index, text in hits]

    def _meet(self, line: Line, text: str, where: Where) -> None:
        patterns = self._sets[where]
        if patterns is None:
            return
        fits: dict[int, str] = {}
        ways = list_line_variants(text)
        if self._quotes.fits(ways):
            return
        for way in ways:
            for index in patterns.find_matching(way):
                fits.setdefault(index, way)
        if not fits:
            return
        live = [watcher for watcher in self._watchers if _looks(watcher, where)]
        if self._steps and any(live[index].marks or live[index].whole for index in fits):
            self._steps.read({"lines": line.number, "states": line.number - 1, "hidden": math.inf}[where])
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
            self._sets[where] = compile_pattern_set(texts) if texts else None


class _StepLines:
    """The lines of a block that tell of steps, read in their order and no earlier than somebody asks."""

    def __init__(self, steps: StepTracker, quotes: ModelTextFilter) -> None:
        self._steps = steps
        self._quotes = quotes
        self._patterns = compile_pattern_set((STEP_LINE,))
        self._left, self._filled_s = float(_MOST), 0.0

    def begin(self, first: int, texts: LineBlock) -> None:
        """Take the next block, whose first line has the number `first`; nothing of it is read yet."""
        self._first, self._texts, self._number = first, texts, first - 1
        self._found = _hits(lambda: self._patterns, texts.joined, len(texts))
        self._next = next(self._found, None)

    def read(self, number: float = math.inf, most: float = math.inf) -> None:
        """Read all up to line `number`, that included, but no more than `most`."""
        while self._next is not None and self._first + self._next[0] <= number and most >= 1:
            self._meet(*self._next)
            self._next = next(self._found, None)
            most -= 1

    def end(self, *, every: bool) -> None:
        """Read the rest of the block; where there is too much of it and not `every` step is asked for, a part."""
        elapsed_s = self._steps.elapsed_s
        self._left = min(_MOST, self._left + _A_SECOND * max(0.0, elapsed_s - self._filled_s))
        self._filled_s = elapsed_s
        self.read(most=math.inf if every else self._left - _LAST)
        if self._next is None or self._left < _LAST:
            return
        last = self._texts.joined.rsplit(b"\n", _LAST)[-_LAST:]
        for index, line in enumerate(last, len(self._texts) - len(last)):
            if self._first + index > self._number and self._patterns.find_next(line, 0) >= 0:
                self._meet(index, line.decode("utf-8", "replace"))

    def _meet(self, index: int, text: str) -> None:
        self._left, self._number = max(0.0, self._left - 1), self._first + index
        line, ways = Line(number=self._number, text=text.strip()), list_line_variants(text)
        way = next((way for way in ways if compile_pattern(STEP_LINE).matches(way)), "")
        if way and not self._quotes.fits(ways) and not self._quotes.is_open(line):
            self._steps.meet(line, way)


def _looks(watcher: LineMatcher, where: Where) -> bool:
    return where == "lines" or (watcher.rewritten if where == "states" else watcher.whole)


def _hits(patterns: Callable[[], PatternSet | None], block: bytes, count: int) -> Iterator[tuple[int, str]]:
    """Yield index and text of the lines in which something may fit; `patterns` may become fewer meanwhile."""
    at = index = 0
    while count and (search := patterns()) is not None:
        found = search.find_next(block, at)
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
