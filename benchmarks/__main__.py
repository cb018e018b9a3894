"""`python -m benchmarks [GOAL…]`: measure the goals, print a table, name what failed and exit 1.

A goal whose measurement breaks is one row, BROKEN; the others go on.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.finding import BROKEN, COLUMNS, RUNS, Finding, find, in_a_line
from benchmarks.goal import Goal
from benchmarks.goals import GOALS
from benchmarks.place import Kept
from benchmarks.table import Cells, kept_rows, load, setting, table_text

_WIDTHS = (5, 39, 35, -8, -8, -8, -12, -12, 0)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the chosen goals and return the exit code."""
    options, chosen = _parse(argv)
    facts = setting("few, by --quick" if options.quick else "all")
    table: Path | None = options.table
    rows = kept_rows(table.read_text(encoding="utf-8"), facts) if options.resume and table and table.exists() else {}
    busy, findings, kept, clean = load(), list[Finding](), Kept(small=options.once), True
    print(_line(COLUMNS))
    try:
        with kept.on_close:
            for goal in chosen:
                if goal.key not in rows:
                    findings.append(find(goal, kept, goal.quick_rounds if options.quick else goal.rounds))
                    rows[goal.key] = findings[-1].cells()
                print(_line(rows[goal.key]), flush=True)
                if table:
                    table.write_text(table_text(facts, _in_order(rows), busy), encoding="utf-8")
    except Exception as error:
        print(f"the run did not end cleanly: {in_a_line(error)}")
        clean = False
    if options.json:
        text = json.dumps({"schema": 1, **facts, "goals": [finding.as_json() for finding in findings]}, indent=1)
        Path(options.json).write_text(text, encoding="utf-8")
    return _exit_code(findings, once=options.once) or int(not clean)


def _parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[Goal]]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("goals", nargs="*", metavar="GOAL", help="numbers (7) or keys (4b); all by default")
    scale = parser.add_mutually_exclusive_group()
    scale.add_argument("--quick", action="store_true", help="fewer rounds: 5 of short commands, 1 of builds")
    scale.add_argument("--once", action="store_true", help="one round of small things: do the goals still run?")
    parser.add_argument("--json", metavar="FILE", help="also write every round's times there")
    parser.add_argument("--table", metavar="FILE", type=Path, help="also write the table there, row by row")
    parser.add_argument(
        "--resume", action="store_true", help="keep the table's rows that held, on this tree and machine"
    )
    options = parser.parse_args(argv)
    if options.once and (options.table or options.resume):
        parser.error("--once measures nothing that belongs into a table")
    if options.resume and not options.table:
        parser.error("--resume goes on with a --table")
    known = {goal.key for goal in GOALS} | {goal.number for goal in GOALS}
    if unknown := sorted(set(options.goals) - known):
        parser.error(f"unknown goal {', '.join(unknown)}; there are {', '.join(goal.key for goal in GOALS)}")
    return options, [goal for goal in GOALS if not options.goals or {goal.key, goal.number} & set(options.goals)]


def _in_order(rows: dict[str, Cells]) -> list[Cells]:
    return [rows[goal.key] for goal in GOALS if goal.key in rows]


def _line(cells: Sequence[str]) -> str:
    return "".join(
        f"{cell:<{width}}" if width > 0 else f"{cell:>{-width}}" if width else f"  {cell}"
        for cell, width in zip(cells, _WIDTHS, strict=True)
    )


def _exit_code(findings: Sequence[Finding], *, once: bool) -> int:
    """Name the goals that were missed, broken or not measured; 1 when there are some."""
    fine = [finding for finding in findings if finding.held or finding.verdict == RUNS]
    left = [finding for finding in findings if finding not in fine]
    for finding in left:
        print(f"goal {finding.goal.key}: {finding.verdict}")
    return int(any(finding.verdict.startswith(BROKEN) for finding in left) if once else bool(left))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was made is removed then, too
    sys.exit(main())
