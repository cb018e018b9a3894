"""`python -m benchmarks [GOAL…]`: measure the goals, print a table, exit 1 when a gate is missed twice in a row."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.goal import Goal
from benchmarks.goals import GOALS
from benchmarks.pairs import NotBuilt, Sample, Unusable
from benchmarks.place import Kept, Place


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was found out about one goal; `failed` decides the exit code."""

    goal: Goal
    verdict: str
    samples: tuple[Sample, ...]
    failed: bool = False

    def row(self) -> str:
        """Return the line of the table."""
        goal = self.goal
        cells = [f"{goal.key:<4}{goal.what:<39}{goal.anchor:<34}"]
        ratio, ours, anchor = (None, None, None)
        if self.samples:
            last = self.samples[-1]
            ratio, ours, anchor = last.ratio, statistics.median(last.ours), statistics.median(last.anchor)
        cells += [_cell(value, ".3g") for value in (ratio, goal.gate, goal.stretch)]
        cells += [_measure(value, self.samples[-1].unit if self.samples else "") for value in (ours, anchor)]
        return "".join(cells) + f"  {self.verdict}"

    def as_json(self) -> dict[str, object]:
        """Return the finding as JSON types."""
        goal = {name: getattr(self.goal, name) for name in ("key", "what", "anchor", "gate", "stretch")}
        return {**goal, "verdict": self.verdict, "samples": [sample.as_json() for sample in self.samples]}


def _cell(value: float | None, form: str) -> str:
    return "       -" if value is None else f"{value:>8{form}}"


def _measure(value: float | None, unit: str) -> str:
    """Return seconds as ms or s, bytes as kB or MB."""
    if value is None:
        return f"{'-':>10}"
    big, small = ("s", "ms") if unit == "s" else ("MB", "kB")
    scale = 1.0 if unit == "s" else 1e6
    return f"{value / scale:>7.3g} {big}" if value >= scale else f"{value / scale * 1e3:>7.3g} {small}"


def find(goal: Goal, rounds: int, kept: Kept) -> Finding:
    """Measure a goal; once more when its gate was missed, since one miss may be the machine's."""
    samples: list[Sample] = []
    try:
        while len(samples) < 2 and not (samples and _holds(goal, samples[-1])):
            with Place(kept) as place:
                samples.append(goal.measure(place, rounds))
    except NotBuilt as missing:
        return Finding(goal=goal, verdict=f"not built yet: {missing}", samples=())
    except Unusable as error:
        sys.stderr.write(f"goal {goal.key}: {error}\n")
        return Finding(goal=goal, verdict="BROKEN", samples=tuple(samples), failed=True)
    failed = not _holds(goal, samples[-1])
    return Finding(goal=goal, verdict=_verdict(goal, samples[-1]), samples=tuple(samples), failed=failed)


def _holds(goal: Goal, sample: Sample) -> bool:
    return goal.gate is None or sample.ratio <= goal.gate


def _verdict(goal: Goal, sample: Sample) -> str:
    if goal.stretch is not None and sample.ratio <= goal.stretch:
        return "stretch reached"
    if goal.gate is None:
        return "no gate"
    return "gate held" if _holds(goal, sample) else "MISSED twice"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the chosen goals and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("goals", nargs="*", metavar="GOAL", help="numbers (7) or keys (4b); all by default")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: 5 of short commands, 1 of builds")
    parser.add_argument("--json", metavar="FILE", help="also write every round's times there")
    options = parser.parse_args(argv)
    known = {goal.key for goal in GOALS} | {goal.number for goal in GOALS}
    if unknown := sorted(set(options.goals) - known):
        parser.error(f"unknown goal {', '.join(unknown)}; there are {', '.join(goal.key for goal in GOALS)}")
    chosen = [goal for goal in GOALS if not options.goals or {goal.key, goal.number} & set(options.goals)]
    print(f"{'goal':<43}{'anchor (= 1)':<34}{'ratio':>8}{'gate':>8}{'stretch':>8}{'rlbox':>10}{'anchor':>10}  verdict")
    findings = []
    kept = Kept()
    with kept.on_close:
        for goal in chosen:
            findings.append(find(goal, goal.quick_rounds if options.quick else goal.rounds, kept))
            print(findings[-1].row(), flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "goals": [finding.as_json() for finding in findings]}, file, indent=1)
    return 1 if any(finding.failed for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
