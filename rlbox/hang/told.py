"""What is recorded of a watched stage while it runs: its phase, and what may be a hang."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlbox.hang.judge import Stall
from rlbox.hang.phases import PhaseLine
from rlbox.hang.watched import Watched
from rlbox.job.names import STAGE_LOG
from rlbox.job.phase import PhasePlan

_RECORD_S = 1.0
_QUOTED = 200


class Told:
    """Records each thing once, and phases once a second at most: markers may come with every step."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._line: PhaseLine | None = None
        self._phase = ""
        self._at_s = -math.inf
        self._noticed = False

    def hear(self, lines: Sequence[PhaseLine]) -> None:
        """Take the lines that began or ended a phase; the last one is quoted."""
        if lines:
            self._line = lines[-1]

    def phase(self, phase: PhasePlan, now_s: float, *, at_once: bool = False) -> None:
        """Record the phase that the stage is in when it changed; soon, or `at_once`."""
        line = self._line
        if line is None or (now_s - self._at_s < _RECORD_S and not at_once):
            return
        self._line = None
        if phase.name == self._phase:
            return
        self._phase, self._at_s = phase.name, now_s
        self._watched.enter(phase.name)
        self._watched.event("phase", phase=phase.name, log=STAGE_LOG, line=line.text[:_QUOTED], limit_s=phase.silence_s)

    def notice(self, stall: Stall | None) -> None:
        """Record what may be a hang when it begins to be one; None: it is none."""
        if stall and not self._noticed:
            self.stall("stalled", stall)
        self._noticed = stall is not None

    def stall(self, event: str, stall: Stall) -> None:
        """Record a hang as `event`."""
        self._watched.event(
            event,
            phase=stall.phase.name,
            rule=stall.rule,
            silent_s=round(stall.silent_s, 1),
            limit_s=round(stall.limit_s, 1),
            step_s=round(stall.step_s, 3),
        )
