"""Judge the processes that are there before a run: what an earlier one left behind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlbox.amounts import duration_text
from rlbox.doctor.judge.judge import Judge
from rlbox.findings import Finding, listed

# Programs of a run, by name or command line; Ray's workers and engines set such titles.
_OF_A_RUN = re.compile(
    r"^(raylet|gcs_server|ray::\S*|VLLM::\S*|sglang::\S*|slime\S*)$"
    r"|/ray/core/src/ray/(raylet|gcs)/|/ray/(_private|dashboard|autoscaler)/\S+\.py|\bray::\w"
    r"|\bvllm(\.entrypoints\b| serve\b)|\bsglang(\.launch_server|_router)\b|/torchrun\b"
    r"|\btorch\.distributed\.(run|launch)\b|\bdeepspeed\b|\bsandbox_fusion\b"
)
_MANY_ZOMBIES = 50  # an init that reaps has none for long


@dataclass(frozen=True, kw_only=True)
class Running:
    """A process. `orphan` says that its parent ended before it, `busy_run` that a living rlbox run owns it.

    `run` is the run that it is the supervisor of.
    """

    pid: int
    name: str
    words: str
    owner: str
    age_s: float
    own: bool = False
    busy_run: bool = False
    run: str = ""
    orphan: bool = False
    zombie: bool = False
    stack: bool = False


def left_over(processes: Sequence[Running]) -> tuple[Running, ...]:
    """Return the processes that no living run owns: of Ray, an engine, a launcher, or an orphan of the stack."""
    return tuple(
        process
        for process in processes
        if not (process.own or process.busy_run or process.zombie)
        if any(map(_OF_A_RUN.search, _titles(process))) or (process.orphan and process.stack)
    )


def _titles(process: Running) -> tuple[str, str, str]:
    """Return what a process may be known by: its name, its command line, and the program of that."""
    return process.name, process.words, process.words.partition(" ")[0].rpartition("/")[2]


def _stale(processes: Sequence[Running]) -> Iterator[Finding]:
    stale = left_over(processes)
    if stale:
        rows = [f"{p.name} (pid {p.pid}, {p.owner}, {duration_text(p.age_s)} old)" for p in stale]
        pids = " ".join(str(p.pid) for p in stale[:20])
        yield Finding(
            id="stale-processes",
            title="processes of an earlier run are still there",
            level="warning",
            seen=listed(rows),
            where="processes",
            remedy=f"ask {', '.join(dict.fromkeys(p.owner for p in stale))}, then end them: kill {pids}",
            breaks=("port-taken", "gpu-busy", "ray-port-conflict", "ray-env-inherited"),
            covers=("stale-processes-hold-port",),
        )


def _live(processes: Sequence[Running]) -> Iterator[Finding]:
    runs = list(dict.fromkeys(process.run for process in processes if process.run))
    if runs:
        yield live_runs(runs, place="here", where="processes", stop=runs[0])


def live_runs(seen: Sequence[str], *, place: str, where: str, stop: str) -> Finding:
    """Return the note that runs go on at a place; `stop` are the words after `rlbox stop` that end the first."""
    return Finding(
        id="live-runs",
        title=f"runs of rlbox go on {place}",
        level="note",
        seen=listed(seen),
        where=where,
        remedy=f"leave it alone, or end it with: rlbox stop {stop}",
    )


def _zombies(processes: Sequence[Running]) -> Iterator[Finding]:
    zombies = [process for process in processes if process.zombie]
    if len(zombies) >= _MANY_ZOMBIES:
        yield Finding(
            id="zombies",
            title="ended processes are not collected",
            level="warning",
            seen=f"{len(zombies)} zombies",
            where="processes",
            remedy="start the container with --init (rlbox does)",
        )


judge_processes = Judge(checks=(_live, _stale, _zombies))
"""What earlier runs left behind, with owners; nothing is ended."""
