"""The steps that a log counts, and how long one usually takes."""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Iterator
from statistics import median

import re2

from rlbox.config.pattern import re2_options
from rlbox.logs.lines import bare_text

_COUNTERS = (
    r"(?i)(?:^|[^a-z0-9_]|global_)(?:steps?|iteration|iter|rollout|epoch|episode|update|batch)"
    r"[\"']?\s?[\[:=#/ ]\s{0,10}(\d{1,12})\b"
    r"|(\d{1,12})/\d{1,12} \["
)
_SIGNS = re.compile(r"[^A-Za-z]+")
_KEY_CHARS = 48
_MOST_HITS = 8
_TAIL_BYTES = 512
_MOST_SERIES = 1024
_MOST_INTERVALS = 64
_MEMORY = 0.995
"""How much of the longest interval is still remembered one step later: half of it after 140 steps."""
_ENOUGH = 8
"""Intervals after which the usual time of a step is known."""


class StepClock:
    """Learns the interval between steps; a step is any counter of the log (`step 12`, `12/100 [`) that rises.

    Counters of several ranks that are written alike are one: the foremost counts. One that falls back to where it
    began starts again (a new epoch); one that only comes again, or comes from a rank that is behind, is no step.
    `longest_s` is the longest time between steps, of which less is remembered the more steps came since.
    """

    def __init__(self) -> None:
        self._pattern = re2.compile(_COUNTERS.encode(), re2_options())
        self._series: dict[str, tuple[int, int]] = {}
        self._intervals: deque[float] = deque(maxlen=_MOST_INTERVALS)
        self.longest_s = 0.0
        self._last_s: float | None = None
        self._warm = False

    def take(self, block: bytes, now_s: float) -> bool:
        """Take lines (UTF-8) that came at `now_s`; return whether a step was among them."""
        stepped = False
        for found in self._hits(block):
            number = 1 if found.group(1) is not None else 2
            start = max(block.rfind(b"\n", 0, found.start(number)) + 1, 0)
            stepped |= self._count(block[start : found.start(number)], int(found.group(number)))
        if stepped:
            self._time(now_s)
        return stepped

    def forget(self) -> None:
        """Begin to learn anew, because another kind of work has begun."""
        self._last_s = None

    @property
    def known(self) -> bool:
        """Whether enough steps were seen to say how long one takes, the last of them since `forget`."""
        return len(self._intervals) >= _ENOUGH and self._last_s is not None

    @property
    def usual_s(self) -> float:
        """The usual time of a step."""
        return median(self._intervals) if self._intervals else 0.0

    def _hits(self, block: bytes) -> Iterator[re2._Match[bytes]]:
        """Yield the first counters of a block, and those at its end: of a flood of steps the last one counts."""
        first = list(itertools.islice(self._pattern.finditer(block), _MOST_HITS))
        yield from first
        if len(first) == _MOST_HITS:
            yield from self._pattern.finditer(block, max(first[-1].end(), len(block) - _TAIL_BYTES))

    def _count(self, before: bytes, number: int) -> bool:
        key = _SIGNS.sub("#", bare_text(before.decode("utf-8", "replace"))[-_KEY_CHARS:])
        first, highest = self._series.get(key, (number, number - 1))
        if number <= highest and not (number <= first < highest):
            return False
        if len(self._series) < _MOST_SERIES or key in self._series:
            self._series[key] = (min(first, number), number)
        return True

    def _time(self, now_s: float) -> None:
        if self._last_s is not None and now_s > self._last_s:
            if self._warm:  # the first interval holds the warm-up
                interval_s = now_s - self._last_s
                self._intervals.append(interval_s)
                self.longest_s = max(interval_s, self.longest_s * _MEMORY)
            self._warm = True
        self._last_s = now_s
