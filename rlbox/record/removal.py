"""Which runs of a data disk can go: what nobody needs any more, and why each of the others stays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlbox.amounts import decimal_size_text


@dataclass(frozen=True, kw_only=True)
class RemovalCandidate:
    """What is known of a run: its state as `rlbox runs` says it, the moment it began (Unix seconds, 0: unknown), bytes.

    `may_be_running`: it goes on, has the data disk, or could not be settled. `checkpoint_paths` are paths below the
    run.
    """

    run: str
    job: str
    state: str
    started_unix_s: float = 0.0
    size_bytes: int = 0
    may_be_running: bool = False
    checkpoint_paths: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RemovalDecision:
    """What becomes of a run: `kept_because` says why it stays; empty: it goes, with `lost_checkpoint_paths`."""

    run: str
    size_bytes: int
    kept_because: str = ""
    lost_checkpoint_paths: tuple[str, ...] = ()


def decide_named_removals(candidates: Iterable[RemovalCandidate]) -> list[RemovalDecision]:
    """Return what becomes of runs that somebody named: all go that have ended."""
    return [
        RemovalDecision(
            run=row.run,
            size_bytes=row.size_bytes,
            kept_because="it has not ended" if row.may_be_running else "",
            lost_checkpoint_paths=row.checkpoint_paths,
        )
        for row in candidates
    ]


def decide_removals_keeping_latest_runs(
    candidates: Sequence[RemovalCandidate], *, started_before_s: float, remove_runs_with_checkpoints: bool
) -> list[RemovalDecision]:
    """Return what becomes of all runs: those go that have ended, and that nothing needs.

    Parameters
    ----------
    started_before_s
        A run that began later stays; Unix seconds.
    remove_runs_with_checkpoints
        Runs that hold checkpoints go, too.
    """
    newest = {row.job: row.run for row in sorted(candidates, key=lambda row: row.started_unix_s)}
    passed = {
        row.job: row.run for row in sorted(candidates, key=lambda row: row.started_unix_s) if row.state == "passed"
    }

    def stays(row: RemovalCandidate) -> str:
        if row.may_be_running:
            return "it has not ended"
        if newest[row.job] == row.run:
            return f"it is the latest of job {row.job}"
        if passed.get(row.job) == row.run:
            return f"it is the latest of job {row.job} that passed"
        if row.checkpoint_paths and not remove_runs_with_checkpoints:
            return f"it holds {len(row.checkpoint_paths)} checkpoints: --checkpoints to remove them, too"
        return "it is younger than --older" if row.started_unix_s > started_before_s else ""

    return [
        RemovalDecision(
            run=row.run, size_bytes=row.size_bytes, kept_because=stays(row), lost_checkpoint_paths=row.checkpoint_paths
        )
        for row in candidates
    ]


def format_removals(decisions: Sequence[RemovalDecision], *, done: bool) -> list[str]:
    """Return what goes, with what is lost with it, and what stays, and why; `done`: it is gone already."""
    lines = []
    for row in decisions:
        if row.kept_because:
            lines.append(f"run {row.run} is kept, since {row.kept_because}")
            continue
        run, size = row.run, decimal_size_text(row.size_bytes)
        lines.append(f"removed run {run}, {size}" if done else f"would remove run {run}, {size}")
        lines += [f"  with checkpoint {path}" for path in row.lost_checkpoint_paths]
    return lines
