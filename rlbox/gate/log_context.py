"""What a log tells of its context: texts that a model wrote, and the steps that each rank makes."""

from __future__ import annotations

import functools
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rlbox.diagnose.lines import find_writer
from rlbox.job.gate_plan import SpanPlan
from rlbox.logs.lines import Line, list_line_variants
from rlbox.logs.patterns import compile_pattern
from rlbox.logs.progress import parse_progress


@dataclass(eq=False)
class LineMatcher:
    """One thing that is looked for in a log.

    `met` is called with each line that fits and the way to read it that fits; it sets `done` when no further line
    matters. `rewritten` ones look at the overwritten states of progress bars, too, and `whole` ones at all that lines
    hold and do not show. In what a model may have written, only those that `marks` its end and `whole` ones look.
    """

    pattern: str
    met: Callable[[Line, str], None]
    rewritten: bool = False
    whole: bool = False
    marks: bool = False
    done: bool = False


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


class ModelTextFilter:
    """What a model wrote in one log. A text that is begun counts as one when its end came: until then it is open."""

    def __init__(self, patterns: tuple[str, ...], spans: Sequence[SpanPlan]) -> None:
        self._patterns = patterns
        self._spans = spans
        self._lanes: dict[str, _Lane] = {}

    def watchers(self) -> Iterator[LineMatcher]:
        """Yield what is to be looked for, before anything else in the same line."""
        for index, span in enumerate(self._spans):
            yield LineMatcher(span.ends, functools.partial(self._end, index), marks=True)
        for index, span in enumerate(self._spans):
            yield LineMatcher(span.begins, functools.partial(self._begin, index), marks=True)

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
        return bool(self._patterns) and self.fits(list_line_variants(text))

    def fits(self, ways: Iterable[str]) -> bool:
        """Return whether a line, read in one of these ways, says itself that a model wrote it: no fact of the run."""
        return any(compile_pattern(pattern).matches(way) for way in ways for pattern in self._patterns)

    def _begin(self, plan: int, line: Line, way: str) -> None:
        if not self.is_open(line) and (len(self._lanes) < _LANES or find_writer(line.text) in self._lanes):
            known = self._lanes.setdefault(find_writer(line.text), _Lane())
            known.begun, known.plan = line.number, plan

    def _end(self, plan: int, line: Line, way: str) -> None:
        known = self._lanes.get(find_writer(line.text))
        if known and self.is_open(line) and known.plan == plan and line.number > known.begun:
            known.ended.append((known.begun, line.number))
            known.begun = 0


_MAX_STEP_LANES = 1024
"""Lanes, by kind of step, that one log is followed in."""
_PATIENCE = 2
"""How often the longest time between two steps may pass before a lane counts as one that makes none."""
_LEAST_S = 30.0


@dataclass
class _Steps:
    """The steps of one kind in one lane: the last, the numbers of the last two lines, and the longest time between."""

    last: float = -math.inf
    line: int = 0
    line_before: int = 0
    heard_s: float = 0.0
    longest_s: float = 0.0


class StepTracker:
    """The steps that the lanes of one log make. `elapsed_s` is the time since the command was started."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self._steps: dict[tuple[str, str], _Steps] = {}

    def meet(self, line: Line, pattern: str) -> None:
        """Take a line that may tell of a step, read in the given way."""
        reading = parse_progress(pattern)
        if reading is not None and reading.step is not None:
            self.hear(line, re.split(r"\d", pattern, maxsplit=1)[0][-40:], reading.step)

    def hear(self, line: Line, kind: str, step: float) -> None:
        """Take a line that tells of a step; one that is not greater than the last of its kind shows nothing."""
        key = (find_writer(line.text), kind)
        known = self._steps.get(key)
        if known is None and len(self._steps) >= _MAX_STEP_LANES:
            return
        known = known or self._steps.setdefault(key, _Steps())
        if not known.last < step < math.inf:
            return
        known.longest_s = max(known.longest_s, self.elapsed_s - known.heard_s)
        known.last, known.heard_s = step, self.elapsed_s
        known.line_before, known.line = known.line, line.number

    def is_step(self, line: Line) -> bool:
        """Whether the line tells of a step itself: then it speaks of the training, and no sample is quoted."""
        return any(steps.line == line.number for steps in self._of(line.text))

    def since(self, text: str, number: int) -> int:
        """Return how many steps the lane of a line made after it, 2 standing for more."""
        return max(((steps.line > number) + (steps.line_before > number) for steps in self._of(text)), default=0)

    def patience_s(self, text: str) -> float:
        """Return how long the next step of the lane of a line may take; 0 where it has made none."""
        steps = self._of(text)
        return max(_LEAST_S, _PATIENCE * max(one.longest_s for one in steps)) if steps else 0.0

    def _of(self, text: str) -> list[_Steps]:
        mine = find_writer(text)
        return [steps for (one, _), steps in self._steps.items() if one == mine]
