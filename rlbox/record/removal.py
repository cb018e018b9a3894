"""Which runs of a data disk can go: what nobody needs any more, and why each of the others stays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlbox.amounts import size_text


@dataclass(frozen=True, kw_only=True)
class RemovalCandidate:
    """What is known of a run: its state as `rlbox runs` says it, the moment it began (Unix seconds, 0: unknown), bytes.

    `held`: it goes on, has the data disk, or could not be settled. `checkpoints` are paths below the run.
    """

    run: str
    job: str
    state: str
    began: float = 0.0
    size: int = 0
    held: bool = False
    checkpoints: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RemovalDecision:
    """What becomes of a run: `stays` says why it is kept; empty: it goes, with `loses`."""

    run: str
    size: int
    kept_because: str = ""
    lost_checkpoints: tuple[str, ...] = ()


def decide_named_removals(rows: Iterable[RemovalCandidate]) -> list[RemovalDecision]:
    """Return what becomes of runs that somebody named: all go that have ended."""
    return [
        RemovalDecision(
            run=row.run,
            size=row.size,
            kept_because="it has not ended" if row.held else "",
            lost_checkpoints=row.checkpoints,
        )
        for row in rows
    ]


def decide_unused_removals(
    rows: Sequence[RemovalCandidate], *, newest_s: float, checkpoints: bool
) -> list[RemovalDecision]:
    """Return what becomes of all runs: those go that have ended, and that nothing needs.

    Parameters
    ----------
    newest_s
        A run that began later stays; Unix seconds.
    checkpoints
        Runs that hold checkpoints go, too.
    """
    newest = {row.job: row.run for row in sorted(rows, key=lambda row: row.began)}
    passed = {row.job: row.run for row in sorted(rows, key=lambda row: row.began) if row.state == "passed"}

    def stays(row: RemovalCandidate) -> str:
        if row.held:
            return "it has not ended"
        if newest[row.job] == row.run:
            return f"it is the latest of job {row.job}"
        if passed.get(row.job) == row.run:
            return f"it is the latest of job {row.job} that passed"
        if row.checkpoints and not checkpoints:
            return f"it holds {len(row.checkpoints)} checkpoints: --checkpoints to remove them, too"
        return "it is younger than --older" if row.began > newest_s else ""

    return [
        RemovalDecision(run=row.run, size=row.size, kept_because=stays(row), lost_checkpoints=row.checkpoints)
        for row in rows
    ]


def format_removals(rows: Sequence[RemovalDecision], *, done: bool) -> list[str]:
    """Return what goes, with what is lost with it, and what stays, and why; `done`: it is gone already."""
    lines = []
    for row in rows:
        if row.kept_because:
            lines.append(f"run {row.run} is kept, since {row.kept_because}")
            continue
        run, size = row.run, size_text(row.size)
        lines.append(f"removed run {run}, {size}" if done else f"would remove run {run}, {size}")
        lines += [f"  with checkpoint {path}" for path in row.lost_checkpoints]
    return lines
