"""Several logs as one timeline: years that clocks leave out, zones that they leave out, and clocks that go wrong."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timezone

from rlbox.diagnose.assess import Case
from rlbox.diagnose.read.clock import ClockTime, in_year, moment_of
from rlbox.diagnose.read.progress import Mark
from rlbox.diagnose.read.reader import Read

SAME_S = 1.0
"""Clocks that are no further apart say nothing of an order: many are written to a second."""
_FINE_S = 0.002
_UNKNOWN_S = float("inf")
_STEP = re.compile(r"(?:global_step|step|iteration|Epoch)[ :=]{1,3}(\d+)", re.IGNORECASE)
_NUMBERS = re.compile(r"(\d{1,18})")
_SHARED_MOST = 200
_SKEW_LEAST_S = 2.0


class Timeline:
    """The times of several logs brought together; `skews_s`: how far each log's clock is ahead of the first one's.

    `turns` are the places of the logs by their names, numbers in these as numbers: which log was named first says
    nothing of what came first, and another order of the same logs is to give the same root.
    """

    def __init__(self, reads: Sequence[Read], names: Sequence[str] = ()) -> None:
        self._year = _year_of(reads)
        self._reads = reads
        named = sorted(range(len(reads)), key=lambda place: _by_number(names[place])) if names else range(len(reads))
        self.turns = dict(zip(named, range(len(reads)), strict=True))
        self.skews_s = self._skews()

    def time_of(self, case: Case) -> tuple[float, float] | None:
        """Return when a failure was told, in seconds of the first log's clock, and how far that may be off.

        A line without a clock was written after the one above it that has one; how long after is not known.
        """
        event = case.event
        own = next((clock for clock in (event.row.clock, *(one.clock for one in event.raised)) if clock), "")
        at = self._at(own or event.near)
        if at is None:
            return None
        off_s = _UNKNOWN_S if not own else _FINE_S if "." in own or "," in own else SAME_S
        return at - self.skews_s[event.file], off_s

    def _at(self, clock: str) -> float | None:
        moment = moment_of(clock) if clock else None
        return in_year(moment, self._year) if moment else None

    def _skews(self) -> list[float]:
        """Return how far each clock is ahead, by what several logs tell of: the same step of a training."""
        if len(self._reads) < 2:
            return [0.0] * len(self._reads)
        from statistics import median  # 10 ms of modules, which who reads one log need not wait for

        steps = [self._steps(read.marks) for read in self._reads]
        first = max(range(len(steps)), key=lambda index: len(steps[index]))
        skews = []
        for own in steps:
            shared = sorted(own.keys() & steps[first].keys())[:_SHARED_MOST]
            apart = median(own[key] - steps[first][key] for key in shared) if shared else 0.0
            skews.append(apart if abs(apart) >= _SKEW_LEAST_S else 0.0)
        return [skew - skews[0] for skew in skews]

    def _steps(self, marks: Sequence[Mark]) -> dict[str, float]:
        found: dict[str, float] = {}
        for mark in marks:
            step = _STEP.search(mark.text)
            at = self._at(mark.clock) if mark.clock and step else None
            if step and at is not None:
                found.setdefault(step.group(1), at)
        return found


def is_told(one: Case, other: Case) -> bool:
    """Whether clocks tell which of two failures came first."""
    if one.time is None or other.time is None:
        return False
    return abs(one.time[0] - other.time[0]) > max(one.time[1], other.time[1])


def precedes(one: Case, other: Case) -> bool:
    """Whether a failure came before another one, as far as clocks and the order of lines tell."""
    same_file = one.event.file == other.event.file
    if same_file and one.event.lane == other.event.lane:
        return one.event.begun < other.event.begun
    if one.time is not None and other.time is not None:
        apart_s, off_s = one.time[0] - other.time[0], max(one.time[1], other.time[1])
        if abs(apart_s) > off_s or (not same_file and apart_s):
            return apart_s < 0
    if same_file:
        return one.event.begun < other.event.begun
    return (one.turn, one.event.begun) < (other.turn, other.event.begun)


def first_of(cases: Sequence[Case]) -> Case:
    """Return the failure that came first."""
    best = cases[0]
    for case in cases[1:]:
        if precedes(case, best):
            best = case
    return best


def in_order(cases: Sequence[Case]) -> list[Case]:
    """Return failures in the order in which they came: by clocks where there are some, else as they stand."""
    by_file: dict[int, list[Case]] = defaultdict(list)
    for case in cases:
        by_file[case.event.file].append(case)
    if len(by_file) == 1:
        return sorted(cases, key=lambda case: case.event.begun)
    keys = {id(case): _key(case) for case in cases}
    return sorted(cases, key=lambda case: keys[id(case)])


def _key(case: Case) -> tuple[float, int, int]:
    return (case.time[0] if case.time else float("inf"), case.turn, case.event.begun)


def _by_number(name: str) -> list[int | str]:
    return [int(part) if part.isdecimal() else part for part in _NUMBERS.split(name)]


def _year_of(reads: Sequence[Read]) -> int:
    """Return the year that clocks which tell one tell, so that the others may be held against them."""
    for read in reads:
        for clock in (*(event.row.clock for event in read.events[:200]), *(mark.clock for mark in read.marks[:50])):
            moment = moment_of(clock) if clock else None
            if moment and _tells_year(moment):
                return datetime.fromtimestamp(moment.at_s, timezone.utc).year
    return 2000


def _tells_year(moment: ClockTime) -> bool:
    return moment.yeared and moment.dated
