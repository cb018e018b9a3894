"""How far a suite is, told now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY_S = 10.0
"""Seconds between two lines, at least."""


class CountedBar:
    """Counts from its making on; `whole` is how many there are."""

    def __init__(self, label: str, whole: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._label, self._whole, self._clock = label, whole, clock
        self._began = self._told = clock()

    def line(self, done: int) -> str:
        """Return a bar as tqdm prints it, or nothing where one was told a moment ago or the end is reached."""
        now = self._clock()
        if now - self._told < EVERY_S or done >= self._whole:
            return ""
        self._told, took = now, now - self._began
        left = clock_text(took / done * (self._whole - done))
        percent = 100 * done // self._whole
        return f"{self._label}: {percent}%| | {done}/{self._whole} [{clock_text(took)}<{left}]"


def clock_text(seconds: float) -> str:
    """Return a span as tqdm writes it: 0:01:05."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
