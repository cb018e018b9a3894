"""Which lanes of a stage's log make steps, so that one that lives on after a bad line is told from one that failed.

A lane is the process or rank that a line names before its text (`lane_of`). No clock: times are given.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from rlbox.diagnose.lines import find_writer
from rlbox.logs.lines import Line
from rlbox.logs.progress import read_progress

_LANES = 1024
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


class Steps:
    """The steps that the lanes of one log make. `elapsed_s` is the time since the command was started."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self._steps: dict[tuple[str, str], _Steps] = {}

    def meet(self, line: Line, way: str) -> None:
        """Take a line that may tell of a step, read in the given way."""
        reading = read_progress(way)
        if reading is not None and reading.step is not None:
            self.hear(line, re.split(r"\d", way, maxsplit=1)[0][-40:], reading.step)

    def hear(self, line: Line, kind: str, step: float) -> None:
        """Take a line that tells of a step; one that is not greater than the last of its kind shows nothing."""
        key = (find_writer(line.text), kind)
        known = self._steps.get(key)
        if known is None and len(self._steps) >= _LANES:
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
