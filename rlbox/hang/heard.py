"""What a stage's log said since it was last judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from rlbox.hang.judge import tail_of
from rlbox.job.names import STAGE_LOG

_BAR_S = 0.2
_BATCH_S = 0.4
"""How long lines may wait when there were some a moment ago: a log that never rests is heard twice a second."""
_MUCH_BYTES, _END_BYTES = 1 << 18, 1 << 14
"""When this much waits, only the end of each further block is kept."""


class Logs(Protocol):
    """What is asked of the logs of a stage."""

    @property
    def taken(self) -> Mapping[str, int]:
        """How many bytes of each log were handed over."""

    def unfinished(self, name: str) -> str:
        """Return the line of a log that has not ended yet, as it is shown now."""


class Heard:
    """The lines that wait to be judged, and the line that has not ended yet (a progress bar)."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._bytes = 0
        self._handed_s = self._looked_s = -math.inf
        self._size = -1

    def add(self, block: bytes) -> None:
        """Take lines that ended."""
        self._size = -1
        self._blocks.append(tail_of(block, _END_BYTES) if self._bytes > _MUCH_BYTES else block)
        self._bytes += len(self._blocks[-1])

    def lines(self, now_s: float, *, at_once: bool = False) -> bytes | None:
        """Return the lines that wait, once; None without any, and unless `at_once` when some were returned just now."""
        if not self._blocks or (now_s - self._handed_s < _BATCH_S and not at_once):
            return None
        block, self._blocks, self._bytes = b"\n".join(self._blocks), [], 0
        self._handed_s = now_s
        return block

    def bar(self, logs: Logs, now_s: float) -> str | None:
        """Return the line that has not ended yet when it grew; it is looked at five times a second at most."""
        if now_s - self._looked_s < _BAR_S:
            return None
        self._looked_s, before, self._size = now_s, self._size, logs.taken.get(STAGE_LOG, 0)
        return logs.unfinished(STAGE_LOG) if self._size != before >= 0 else None
