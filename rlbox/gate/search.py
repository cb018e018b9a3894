"""Search the blocks of one log for all that a gate waits for, touching only lines that hit."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from rlbox.gate.log_context import LineMatcher, ModelTextFilter, StepTracker
from rlbox.logs.lines import Line, LineBlock, list_prefix_stripped_variants
from rlbox.logs.patterns import PatternSet, compile_pattern_set
from rlbox.logs.progress import STEP_LINE

Layer = Literal["lines", "overwritten"]
"""What is searched of a block: its lines, and the overwritten states of progress bars."""

_STEP_BYTES = 2048
"""Bytes at the end of a block in which steps are read while no line is in doubt: one costs far more than a search."""


class _Hit(NamedTuple):
    line_index: int
    is_line: bool
    """Of one line the overwritten states come before the line itself."""
    text: str


class _LayerSearch(NamedTuple):
    matchers: list[LineMatcher]
    patterns: PatternSet


class LogSearch:
    """All matchers of one log; those that are done are searched for no more, so that hits become rare.

    `steps` gets the steps that the log reports: the last of each block, all of them before a forbidden line or a text
    of a model, and while `has_undecided_lines`.
    """

    def __init__(
        self,
        matchers: Iterable[LineMatcher],
        model_texts: ModelTextFilter,
        steps: StepTracker | None,
        has_undecided_lines: Callable[[], bool],
    ) -> None:
        self._matchers = list(matchers)
        self._model_texts = model_texts
        self._steps = _StepReader(steps, model_texts) if steps else None
        self._has_undecided_lines = has_undecided_lines
        self._compile()
        self.last_line = ""

    @property
    def pending_patterns(self) -> tuple[str, ...]:
        """The expressions that are still looked for, without anchors; the same object as long as nothing changes."""
        search = self._layers.get("lines")
        return search.patterns.loose if search else ()

    def call_matchers_on_block(self, first_number: int, block: LineBlock) -> None:
        """Call the matchers of the lines that fit; `first_number` is the number of the first line."""
        if self._steps:
            self._steps.begin_block(first_number, block)
        for hit in heapq.merge(self._line_hits(block), self._overwritten_hits(block)):
            line = Line(number=first_number + hit.line_index, text=hit.text.strip())
            self._match(line, hit.text, "lines" if hit.is_line else "overwritten")
        if self._steps:
            self._steps.end_block(reads_all=self._has_undecided_lines())
        self.last_line = _last_visible_line(block.joined) or self.last_line

    def _line_hits(self, block: LineBlock) -> Iterator[_Hit]:
        if block.hits is None:
            hits = self._find_hits("lines", block.joined, len(block))
        else:
            hits = ((index, block[index]) for index in block.hits)
        return (_Hit(index, True, text) for index, text in hits)

    def _overwritten_hits(self, block: LineBlock) -> list[_Hit]:
        if not block.overwritten_states:
            return []
        hits = self._find_hits("overwritten", block.joined_overwritten_states, len(block.overwritten_states))
        return [_Hit(block.overwritten_states[index].line_index, False, text) for index, text in hits]

    def _find_hits(self, layer: Layer, block: bytes, count: int) -> Iterator[tuple[int, str]]:
        return _find_hits(lambda: search.patterns if (search := self._layers.get(layer)) else None, block, count)

    def _match(self, line: Line, text: str, layer: Layer) -> None:
        search, variants = self._layers.get(layer), list_prefix_stripped_variants(text)
        if search is None or self._model_texts.is_model_output(variants):
            return
        fitting: dict[int, str] = {}
        for variant in variants:
            for index in search.patterns.find_matching_indexes(variant):
                fitting.setdefault(index, variant)
        if self._steps and any(search.matchers[index].needs_all_earlier_steps for index in fitting):
            self._steps.read_until(line.number if layer == "lines" else line.number - 1)
        for index in sorted(fitting):
            matcher = search.matchers[index]
            if matcher.reads_model_text or matcher.is_forbidden or not self._model_texts.expire_and_check_open(line):
                matcher.on_match(line, fitting[index])
        if any(matcher.is_done for matcher in search.matchers):
            self._matchers = [matcher for matcher in self._matchers if not matcher.is_done]
            self._compile()

    def _compile(self) -> None:
        reads: dict[Layer, Callable[[LineMatcher], bool]] = {
            "lines": lambda matcher: True,
            "overwritten": lambda matcher: matcher.reads_overwritten,
        }
        self._layers: dict[Layer, _LayerSearch] = {}
        for layer, is_reader in reads.items():
            if matchers := [matcher for matcher in self._matchers if is_reader(matcher)]:
                patterns = compile_pattern_set(tuple(matcher.pattern for matcher in matchers))
                self._layers[layer] = _LayerSearch(matchers, patterns)


class _StepReader:
    """Reads the steps that a log reports: those at the end of a block, and all before a line that depends on them."""

    def __init__(self, steps: StepTracker, model_texts: ModelTextFilter) -> None:
        self._steps = steps
        self._model_texts = model_texts
        self._patterns = compile_pattern_set((STEP_LINE,))

    def begin_block(self, first: int, block: LineBlock) -> None:
        self._first, self._block, self._last_read = first, block, first - 1
        self._hits = _find_hits(lambda: self._patterns, block.joined, len(block))
        self._next_hit = next(self._hits, None)

    def read_until(self, number: float) -> None:
        while self._next_hit and self._first + self._next_hit[0] <= number:
            self._read(*self._next_hit)
            self._next_hit = next(self._hits, None)

    def end_block(self, *, reads_all: bool) -> None:
        joined = self._block.joined
        if reads_all or len(joined) <= _STEP_BYTES:
            self.read_until(math.inf)
            return
        start = joined.find(b"\n", len(joined) - _STEP_BYTES) + 1
        first = joined.count(b"\n", 0, start)
        for index, text in _find_hits(lambda: self._patterns, joined[start:], len(self._block) - first):
            if self._first + first + index > self._last_read:
                self._read(first + index, text)

    def _read(self, index: int, text: str) -> None:
        self._last_read = self._first + index
        line, variants = Line(number=self._last_read, text=text.strip()), list_prefix_stripped_variants(text)
        if not self._model_texts.is_model_output(variants) and not self._model_texts.expire_and_check_open(line):
            self._steps.read_line(line, variants)


def _find_hits(patterns: Callable[[], PatternSet | None], block: bytes, count: int) -> Iterator[tuple[int, str]]:
    """Yield index and text of the lines in which something may fit; `patterns` may become fewer meanwhile."""
    at = index = 0
    while count and (search := patterns()) is not None:
        found = search.find_next_candidate(block, at)
        if found < 0:
            return
        begin = block.rfind(b"\n", at, found) + 1 or at
        end = block.find(b"\n", found)
        index += block.count(b"\n", at, found)
        yield index, block[begin : end if end >= 0 else len(block)].decode("utf-8", "replace")
        if end < 0:
            return
        at, index = end + 1, index + 1


def _last_visible_line(block: bytes) -> str:
    end = len(block)
    while end > 0:
        begin = block.rfind(b"\n", 0, end) + 1
        if text := block[begin:end].strip():
            return text.decode("utf-8", "replace")
        end = begin - 1
    return ""
