"""Compare two commands on a machine that is busy with other things.

Both are run in turn (A B A B …), and the ratio is taken round by round, so that the two halves of a ratio were
measured within the same second. The result is the median of those ratios; times in seconds are for information.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO


class Unusable(Exception):
    """A command did not do what was to be measured, so that its time says nothing."""


class NotHere(Exception):
    """This machine lacks what the goal needs."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A whole process to time.

    `says` is a text its output must hold, `exit_code` how it must end: both prove that the intended work was done.
    `before` runs ahead of each start and is not timed.
    """

    name: str
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    before: Callable[[], None] | None = None
    says: str = ""
    exit_code: int = 0


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Rounds of one comparison: what rlbox and the anchor took, in the order they were measured; `unit` is s or B.

    `limit` is what the machine, or the library that rlbox speaks through, allows by itself, measured beside them where
    a goal asks for that.
    """

    ours: tuple[float, ...]
    anchor: tuple[float, ...]
    limit: tuple[float, ...] = ()
    unit: str = "s"

    @property
    def ratios(self) -> tuple[float, ...]:
        """The ratio of each round."""
        return _ratios(self.ours, self.anchor)

    @property
    def ratio(self) -> float:
        """The result: the median of the ratios."""
        return statistics.median(self.ratios)

    @property
    def of_limit(self) -> float | None:
        """The median of the ratios to the limit, where that was measured."""
        return statistics.median(_ratios(self.ours, self.limit)) if self.limit else None

    def as_json(self) -> dict[str, object]:
        """Return the sample as JSON types."""
        return {
            "unit": self.unit,
            "ratio": self.ratio,
            "ratios": self.ratios,
            "ours": self.ours,
            "anchor": self.anchor,
            "limit": self.limit,
        }


def _ratios(ours: tuple[float, ...], others: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(own / other for own, other in zip(ours, others, strict=True))


def interleave(measures: Sequence[Callable[[], float]], rounds: int, warm_up: int) -> list[tuple[float, ...]]:
    """Return what each of `measures` gave in `rounds` rounds of one call each, after `warm_up` that do not count."""
    found: list[list[float]] = [[] for _ in measures]
    for number in range(warm_up + rounds):
        for measure, values in zip(measures, found, strict=True):
            value = measure()
            if number >= warm_up:
                values.append(value)
    return [tuple(values) for values in found]


def time_process(case: Case) -> float:
    """Run a command once and return its wall time in seconds, from before its start until it was waited for.

    Raises
    ------
    Unusable
        It did something else than it should; its output is quoted.
    """
    if case.before:
        case.before()
    with tempfile.TemporaryFile() as output:
        began = time.perf_counter()
        code = _spawn(case, output)
        seconds = time.perf_counter() - began
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    if code != case.exit_code or case.says not in text:
        raise Unusable(
            f"{case.name}: exit code {code} (expected {case.exit_code}), expected {case.says!r} in:\n{text[-2000:]}"
        )
    return seconds


def _spawn(case: Case, output: BinaryIO) -> int:
    here = os.getcwd()
    os.chdir(case.cwd)
    try:
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output.fileno(), 1),
            (os.POSIX_SPAWN_DUP2, output.fileno(), 2),
        ]
        pid = os.posix_spawnp(case.argv[0], case.argv, case.env, file_actions=actions)
    finally:
        os.chdir(here)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
