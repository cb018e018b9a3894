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
    """A process.

    Attributes
    ----------
    owner
        Its user; `mine`: it is the user of this doctor.
    own
        It is this doctor, what started that, or what that started.
    busy_run
        A living run of rlbox owns it, of whatever data disk.
    run
        The run that it is the supervisor of.
    left_by
        The run that it was started for, whose supervisor is gone.
    orphan
        What started it ended before it.
    started_by
        The living program that it is below, none of a run: a shell, a test, a script.
    """

    pid: int
    name: str
    words: str
    owner: str
    age_s: float
    mine: bool = True
    own: bool = False
    busy_run: bool = False
    run: str = ""
    left_by: str = ""
    started_by: str = ""
    orphan: bool = False
    zombie: bool = False
    stack: bool = False


def is_of_a_run(name: str, words: str) -> bool:
    """Return whether a process is a part of Ray, an engine or a launcher, by its name and command line."""
    return any(map(_OF_A_RUN.search, (name, words, words.partition(" ")[0].rpartition("/")[2])))


def left_over(processes: Sequence[Running]) -> tuple[Running, ...]:
    """Return the processes that nothing living owns: of Ray, an engine, a launcher, or an orphan of the stack.

    What a program that lives has started is its business, and so is what a living run of any data disk has.
    """
    return tuple(
        process
        for process in processes
        if not (process.own or process.busy_run or process.zombie or process.started_by)
        if process.left_by or is_of_a_run(process.name, process.words) or (process.orphan and process.stack)
    )


def _stale(processes: Sequence[Running]) -> Iterator[Finding]:
    stale = left_over(processes)
    if stale:
        rows = [_told(process) for process in stale]
        yield Finding(
            id="stale-processes",
            title="processes of an earlier run are still there",
            level="warning",
            seen=listed(rows),
            where="processes",
            remedy=_remedy(stale),
            breaks=("port-taken", "gpu-busy", "ray-port-conflict", "ray-env-inherited"),
            covers=("stale-processes-hold-port",),
        )


def _told(p: Running) -> str:
    age = duration_text(p.age_s)
    if p.left_by:
        return f"{p.name} (pid {p.pid}, {p.owner}, {age} old, of run {p.left_by})"
    return f"{p.name} (pid {p.pid}, {p.owner}, {age} old)"


def _remedy(stale: Sequence[Running]) -> str:
    """Return what to do: one's own may be ended, others' are for others to end."""
    pids = " ".join(str(process.pid) for process in stale if process.mine)
    others = ", ".join(dict.fromkeys(process.owner for process in stale if not process.mine))
    if not pids:
        return f"ask {others} to end them, if nothing needs them"
    ends = f"if nothing of yours needs them, end them: kill {pids}"
    return f"{ends}; ask {others} to end the others" if others else ends


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
