"""What a model wrote, in a log: lines that fit a pattern, and texts from a line that begins one to one that ends it."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rlbox.diagnose.lines import find_writer
from rlbox.gate.watcher import Watcher
from rlbox.job.gate_plan import SpanPlan
from rlbox.logs.lines import Line, views
from rlbox.logs.patterns import compile_pattern

_LANES = 1024
_LONGEST = 10_000
"""Lines after which a text that was begun is none: who was to end it does not."""
_KEPT = 256


@dataclass
class _Lane:
    """The texts of one process or rank: where one was begun (0: none is open), by which plan, and those that ended."""

    begun: int = 0
    plan: int = -1
    ended: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_KEPT))


class Quotes:
    """What a model wrote in one log. A text that is begun counts as one when its end came: until then it is open."""

    def __init__(self, patterns: tuple[str, ...], spans: Sequence[SpanPlan]) -> None:
        self._patterns = patterns
        self._spans = spans
        self._lanes: dict[str, _Lane] = {}

    def watchers(self) -> Iterator[Watcher]:
        """Yield what is to be looked for, before anything else in the same line."""
        for index, span in enumerate(self._spans):
            yield Watcher(span.ends, functools.partial(self._end, index), marks=True)
        for index, span in enumerate(self._spans):
            yield Watcher(span.begins, functools.partial(self._begin, index), marks=True)

    def is_open(self, line: Line) -> bool:
        """Return whether the line lies in a text whose end has not come yet."""
        known = self._lanes.get(find_writer(line.text)) if self._spans else None
        if known is None or not known.begun:
            return False
        if line.number - known.begun > _LONGEST:
            known.begun = 0
        return 0 < known.begun <= line.number

    def holds(self, number: int, text: str) -> bool:
        """Return whether a line is what a model wrote, as far as it was seen to its end."""
        known = self._lanes.get(find_writer(text)) if self._spans else None
        if known and any(begun <= number < ended for begun, ended in known.ended):
            return True
        return bool(self._patterns) and self.fits(views(text))

    def fits(self, ways: Iterable[str]) -> bool:
        """Return whether a line, read in one of these ways, says itself that a model wrote it: no fact of the run."""
        return any(compile_pattern(pattern).fits(way) for way in ways for pattern in self._patterns)

    def _begin(self, plan: int, line: Line, way: str) -> None:
        if not self.is_open(line) and (len(self._lanes) < _LANES or find_writer(line.text) in self._lanes):
            known = self._lanes.setdefault(find_writer(line.text), _Lane())
            known.begun, known.plan = line.number, plan

    def _end(self, plan: int, line: Line, way: str) -> None:
        known = self._lanes.get(find_writer(line.text))
        if known and self.is_open(line) and known.plan == plan and line.number > known.begun:
            known.ended.append((known.begun, line.number))
            known.begun = 0
