"""Feed the logs of a stage to its gate while they grow."""

from __future__ import annotations

import time
from pathlib import Path

from rlbox.act.tail import Tail
from rlbox.plan.gates import STAGE_LOG, Gate
from rlbox.plan.run import StagePlan

STAGE_LOG_FILE = "stage.log"


class LogWatch:
    """The logs of one stage, those of services first: what a service says comes before what its clients make of it."""

    def __init__(self, stage: StagePlan, folder: Path, gate: Gate) -> None:
        self._gate = gate
        self._tails = {service.name: Tail(folder / service.log) for service in stage.services}
        self._tails[STAGE_LOG] = Tail(folder / STAGE_LOG_FILE)
        self._grown_at = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds since the stage's own log last grew, or since `listen`."""
        return time.monotonic() - self._grown_at

    def listen(self) -> None:
        """Count silence from now on."""
        self._grown_at = time.monotonic()

    def read(self) -> bool:
        """Feed one block of each log; return whether there was anything."""
        found = False
        for name, tail in self._tails.items():
            data = tail.read()
            if data:
                found = True
                self._gate.feed(name, data)
                if name == STAGE_LOG:
                    self._grown_at = time.monotonic()
        return found

    def drain(self) -> None:
        """Feed all that the logs hold by now."""
        while self.read():
            pass

    def close(self) -> None:
        """Feed the rest, count last lines without a line feed, and let go of the files."""
        self.drain()
        self._gate.close_logs()
        for tail in self._tails.values():
            tail.close()
