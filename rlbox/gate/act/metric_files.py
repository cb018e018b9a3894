"""Follow the files of JSON lines that metric rules read, from where they ended when the stage began."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rlbox.files.act.tail import Tail
from rlbox.gate.gate import GateJudge


class MetricFiles:
    """The metric files of one gate; rows of earlier stages do not count."""

    def __init__(self, gate: GateJudge) -> None:
        self._gate = gate
        self._tails = {path: Tail(Path(path)) for path in gate.metric_files}
        for tail in self._tails.values():
            with contextlib.suppress(OSError):
                tail.skip()

    def read(self) -> bool:
        """Feed one block of each file; return whether there was anything."""
        found = False
        for path, tail in self._tails.items():
            with contextlib.suppress(OSError):  # a file that cannot be read has no points, which the rule tells
                if data := tail.read():
                    self._gate.feed(path, data)
                    found = True
        return found

    def close(self) -> None:
        """Feed what is left, and let go of the files."""
        while self.read():
            pass
        for tail in self._tails.values():
            tail.close()
