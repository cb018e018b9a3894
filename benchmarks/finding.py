"""What is found out about a goal, whatever its measurement ends with."""

from __future__ import annotations

import statistics
import sys
import traceback
from dataclasses import dataclass

from benchmarks.goal import Goal
from benchmarks.pairs import NotHere, Sample, Unusable
from benchmarks.place import Kept, Place

BROKEN, NOT_HERE, RUNS = "BROKEN", "not measured here", "runs"
HELD = ("gate held", "stretch reached", "no gate")
COLUMNS = ("goal", "what", "anchor (= 1)", "ratio", "gate", "stretch", "rlbox", "anchor", "verdict")
_LONGEST = 150


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was found out about one goal: the `verdict` begins with one of the words above, or is `MISSED twice`."""

    goal: Goal
    verdict: str
    samples: tuple[Sample, ...] = ()

    @property
    def held(self) -> bool:
        """Whether the goal was measured and its gate held."""
        return self.verdict.startswith(HELD)

    def cells(self) -> tuple[str, ...]:
        """Return the goal's row of a table, in the order of `COLUMNS`."""
        goal, last = self.goal, self.samples[-1] if self.samples else None
        ratio, ours, anchor = (last.ratio, last.ours, last.anchor) if last else (None, (), ())
        return (
            goal.key,
            goal.what,
            goal.anchor,
            *("-" if value is None else f"{value:.3g}" for value in (ratio, goal.gate, goal.stretch)),
            *(_measure(statistics.median(values), last.unit) if last else "-" for values in (ours, anchor)),
            self.verdict,
        )

    def as_json(self) -> dict[str, object]:
        """Return the finding as JSON types."""
        goal = {name: getattr(self.goal, name) for name in ("key", "what", "anchor", "gate", "stretch", "of_limit")}
        return {**goal, "verdict": self.verdict, "samples": [sample.as_json() for sample in self.samples]}


def find(goal: Goal, kept: Kept, rounds: int) -> Finding:
    """Measure a goal, once more when its gate was missed, since one miss may be the machine's; never raises.

    In what is kept small it is measured once and in one round, and its gate is not looked at.
    """
    samples: list[Sample] = []
    try:
        while len(samples) < 2 and not (samples and (kept.small or goal.holds(samples[-1]))):
            with Place(kept, 1 if kept.small else rounds) as place:
                samples.append(goal.measure(place))
        verdict = RUNS if kept.small else _verdict(goal, samples[-1])
    except NotHere as missing:
        verdict = f"{NOT_HERE}: {missing}"
    except Exception as error:
        told = str(error) if isinstance(error, Unusable) else traceback.format_exc()
        sys.stderr.write(f"goal {goal.key}: {told.rstrip()}\n")
        verdict = f"{BROKEN}: {in_a_line(error)}"
    return Finding(goal=goal, verdict=verdict, samples=tuple(samples))


def in_a_line(error: Exception) -> str:
    """Return what a goal ended with in one line: its first, and the first that says `error`."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    more = next((line for line in lines[1:] if "error" in line.lower()), "")
    kind = "" if isinstance(error, Unusable) else f"{type(error).__name__}: "
    return f"{kind}{lines[0]}{' … ' if more else ''}{more}"[:_LONGEST]


def _verdict(goal: Goal, sample: Sample) -> str:
    if goal.stretch is not None and sample.ratio <= goal.stretch:
        return "stretch reached"
    if not goal.holds(sample):
        word = "MISSED twice"
    else:
        word = "no gate" if goal.gate is None else "gate held"
    return word if sample.of_limit is None else f"{word}, {sample.of_limit:.2f} of the limit"


def _measure(value: float, unit: str) -> str:
    """Return seconds as ms or s, bytes as kB or MB, a count as it is."""
    if not unit:
        return f"{value:g}"
    big, small = ("s", "ms") if unit == "s" else ("MB", "kB")
    scale = 1.0 if unit == "s" else 1e6
    return f"{value / scale:.3g} {big}" if value >= scale else f"{value / scale * 1e3:.3g} {small}"
