"""The state that a supervisor starts with: a new run's, or that of the run it goes on with."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

from rlbox.files.act.folders import write_atomic
from rlbox.job.names import ATTEMPT
from rlbox.job.plan import RunPlan
from rlbox.record.act.rebuild import last_state
from rlbox.record.act.state import RUN_FILE, RunState, StageState, new_run_state


def begin_attempt(run_dir: Path, plan: RunPlan, supervisor_pid: int) -> RunState:
    """Return the state to start with, and move what earlier attempts left in stages that run again out of the way.

    Stages that passed stay passed up to `plan.begin_at` (or the first that did not). The files of every other stage go
    to `attempt-N/` below its directory, and `run.json` as it was becomes `run.attempt-N.json`. Being killed in the
    middle loses nothing: the next attempt moves the rest to the same place.

    Raises
    ------
    OSError
        The disk is full or gone.
    """
    state = new_run_state(plan, supervisor_pid)
    before = last_state(run_dir, plan) if plan.attempt > 1 else None
    if before is None:
        return _skip(state, plan)
    with contextlib.suppress(FileNotFoundError):
        write_atomic(run_dir / f"run.{ATTEMPT}{before.attempt}.json", (run_dir / RUN_FILE).read_bytes())
    runs, known = plan_attempts(before, plan.begin_at), {stage.name: stage for stage in before.stages}
    stages = tuple(_begin(run_dir, stage, known.get(stage.name), runs) for stage in state.stages)
    return _skip(dataclasses.replace(state, started_at=before.started_at, stages=stages), plan)


def plan_attempts(before: RunState, begin_at: str) -> dict[str, int]:
    """Return the stages that run when the run is taken up again, with the number of each one's attempt, from 1.

    They are all from `begin_at` on; when that is empty, from the first that has not passed.
    """
    names = [stage.name for stage in before.stages]
    open_ends = [stage.name for stage in before.stages if stage.state not in ("passed", "skipped")]
    first = names.index(begin_at or open_ends[0]) if begin_at or open_ends else len(names)
    return {stage.name: stage.attempt + bool(stage.started_at) for stage in before.stages[first:]}


def _begin(run_dir: Path, stage: StageState, old: StageState | None, runs: dict[str, int]) -> StageState:
    if old is None:
        return stage
    if stage.name not in runs:
        return old
    if runs[stage.name] > old.attempt:
        _move_away(run_dir / stage.directory, f"{ATTEMPT}{old.attempt}")
    return dataclasses.replace(stage, attempt=runs[stage.name])


def _skip(state: RunState, plan: RunPlan) -> RunState:
    stages = (
        dataclasses.replace(s, state="skipped", cause=None) if s.name in plan.skipped else s for s in state.stages
    )
    return dataclasses.replace(state, stages=tuple(stages))


def _move_away(folder: Path, name: str) -> None:
    for path in list(folder.iterdir()) if folder.is_dir() else []:
        if not path.name.startswith(ATTEMPT):
            (folder / name).mkdir(exist_ok=True)
            os.replace(path, folder / name / path.name)
