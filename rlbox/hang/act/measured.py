"""What the processes of a stage do, measured between two looks at them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping

from rlbox.machine.act.counters import probe_activity
from rlbox.machine.counters import Activity, Rates, rates_between

Probe = Callable[[Iterable[int]], Activity]

_MEMBERS_S = 5.0


class Measured:
    """Counts the processes among `members()` but those whose names begin like one of `background`."""

    def __init__(
        self, members: Callable[[], Mapping[int, str]], background: tuple[str, ...], probe: Probe = probe_activity
    ) -> None:
        self._members, self._background, self._probe = members, background, probe
        self._pids: tuple[int, ...] = ()
        self._listed_s = -math.inf
        self._before: Activity | None = None

    @property
    def at_s(self) -> float:
        """When they were last looked at; minus infinity before the first time."""
        return self._before.t_s if self._before else -math.inf

    def rates(self, now_s: float) -> Rates | None:
        """Return what they did since the last time; None the first time."""
        before, self._before = self._before, self._activity(now_s)
        return rates_between(before, self._before) if before else None

    def _activity(self, now_s: float) -> Activity:
        if now_s - self._listed_s >= _MEMBERS_S:  # who is a member costs more than what it does
            self._pids = tuple(self._members())
            self._listed_s = now_s
        found = self._probe(self._pids)
        kept = tuple(process for process in found.processes if not process.name.startswith(self._background))
        return dataclasses.replace(found, t_s=now_s, processes=kept)
