"""Which runs of a data disk can go: what nobody needs any more, and why each of the others stays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rlbox.amounts import decimal_size_text


@dataclass(frozen=True, kw_only=True)
class RemovalCandidate:
    """A run that may go: its state as `rlbox runs` says it, and when it began (Unix seconds, 0: unknown).

    `may_be_running`: it goes on, has the data disk, or could not be settled. `checkpoint_paths` are below the run.
    `kept_because` says why it stays; empty: it goes.
    """

    run: str
    job: str
    state: str
    started_unix_s: float = 0.0
    size_bytes: int = 0
    may_be_running: bool = False
    checkpoint_paths: tuple[str, ...] = ()
    kept_because: str = ""


def decide_named_removals(candidates: Iterable[RemovalCandidate]) -> list[RemovalCandidate]:
    return [replace(row, kept_because="it has not ended" if row.may_be_running else "") for row in candidates]


def decide_removals_keeping_latest_runs(
    candidates: Sequence[RemovalCandidate], *, started_before_s: float, remove_runs_with_checkpoints: bool
) -> list[RemovalCandidate]:
    """Return what becomes of all runs: those go that have ended, and that nothing needs; times in Unix seconds."""
    by_age = sorted(candidates, key=lambda row: row.started_unix_s)
    newest = {row.job: row.run for row in by_age}
    passed = {row.job: row.run for row in by_age if row.state == "passed"}

    def find_reason_to_keep(row: RemovalCandidate) -> str:
        if row.may_be_running:
            return "it has not ended"
        if newest[row.job] == row.run:
            return f"it is the latest of job {row.job}"
        if passed.get(row.job) == row.run:
            return f"it is the latest of job {row.job} that passed"
        if row.checkpoint_paths and not remove_runs_with_checkpoints:
            return f"it holds {len(row.checkpoint_paths)} checkpoints: --checkpoints to remove them, too"
        return "it is younger than --older" if row.started_unix_s > started_before_s else ""

    return [replace(row, kept_because=find_reason_to_keep(row)) for row in candidates]


def format_removals(rows: Iterable[RemovalCandidate], *, done: bool) -> list[str]:
    lines = []
    for row in rows:
        if row.kept_because:
            lines.append(f"run {row.run} is kept, since {row.kept_because}")
            continue
        lines.append(f"{'removed' if done else 'would remove'} run {row.run}, {decimal_size_text(row.size_bytes)}")
        lines += [f"  with checkpoint {path}" for path in row.checkpoint_paths]
    return lines
