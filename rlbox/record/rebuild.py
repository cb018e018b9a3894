"""The last state of a run, also when its `run.json` is torn: then from its events, of which each is a whole line.

It is what the supervisor of a run that is taken up again starts with.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_args

from rlbox.diagnose.cause import Cause
from rlbox.errors import SpecError
from rlbox.job.names import ATTEMPT
from rlbox.job.plan import RunPlan
from rlbox.record.journal import EVENTS_FILE
from rlbox.record.state import (
    RUN_FILE,
    RunState,
    RunStatus,
    StageState,
    StageStatus,
    change_stage,
    load_run_state,
    new_run_state,
)
from rlbox.system.json_files import read_json_lines
from rlbox.system.safe_files import list_names, make_directory, read_bytes, read_stat, rename_path, replace_file

_EVENTS_BYTES = 32 << 20


def load_last_state(run_dir: Path, plan: RunPlan) -> RunState | None:
    """Return `run.json` of a run, or what its events say when that cannot be read; None when it never began."""
    path = run_dir / RUN_FILE
    try:
        return load_run_state(run_dir)
    except SpecError:
        with contextlib.suppress(OSError):
            if read_stat(path) is None and read_stat(run_dir / EVENTS_FILE) is None:
                return None
    return rebuild_state(run_dir, plan)


def rebuild_state(run_dir: Path, plan: RunPlan) -> RunState:
    """Return the state that the run's events lead to; gates and exit codes of its stages are not among them."""
    state = dataclasses.replace(new_run_state(plan, supervisor_pid=0), started_at="")
    for event in read_events(run_dir):
        state = _apply_event(state, event)
    return state


def read_events(run_dir: Path) -> Iterator[dict[str, Any]]:
    """Return the events of a run in order; torn lines, as a kill leaves them, are passed over."""
    return (event for event in read_json_lines(run_dir / EVENTS_FILE, _EVENTS_BYTES) if "event" in event)


def _apply_event(state: RunState, event: dict[str, Any]) -> RunState:
    at, now = str(event.get("t", "")), event.get("state")
    match event["event"]:
        case "run" if now in get_args(RunStatus):
            if now == "running":
                state = _reset_unpassed(state)
                return dataclasses.replace(state, state="running", started_at=state.started_at or at)
            code = event.get("exit_code")
            code = code if isinstance(code, int) else None
            return dataclasses.replace(state, state=cast(RunStatus, now), ended_at=at, exit_code=code)
        case "stage" if now in get_args(StageStatus):
            changes: dict[str, Any] = {"state": now}
            if now == "starting":
                changes |= {"started_at": at, "ended_at": "", "cause": None}
            elif now not in ("waiting", "running"):
                changes["ended_at"] = at
            if (cause := event.get("cause")) and isinstance(cause, str):
                changes["cause"] = Cause(kind="interrupted" if now == "interrupted" else "lost", what=cause)
            return change_stage(state, str(event.get("stage")), **changes)
        case _:
            return state


def _reset_unpassed(state: RunState) -> RunState:
    """A supervisor starts: what did not pass before waits again."""
    for stage in state.stages:
        if stage.state not in ("passed", "skipped"):
            state = change_stage(state, stage.name, state="waiting", cause=None, ended_at="")
    return state


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
    before = load_last_state(run_dir, plan) if plan.attempt > 1 else None
    if before is None:
        return _mark_skipped(state, plan)
    with contextlib.suppress(FileNotFoundError):
        replace_file(run_dir / f"run.{ATTEMPT}{before.attempt}.json", read_bytes(run_dir / RUN_FILE))
    runs, known = plan_attempts(before, plan.begin_at), {stage.name: stage for stage in before.stages}
    stages = tuple(_restart_stage(run_dir, stage, known.get(stage.name), runs) for stage in state.stages)
    return _mark_skipped(dataclasses.replace(state, started_at=before.started_at, stages=stages), plan)


def plan_attempts(before: RunState, begin_at: str) -> dict[str, int]:
    """Return the stages that run when the run is taken up again, with the number of each one's attempt, from 1.

    They are all from `begin_at` on; when that is empty, from the first that has not passed.
    """
    names = [stage.name for stage in before.stages]
    begin_at = begin_at or first_unpassed_stage(before)
    first = names.index(begin_at) if begin_at in names else len(names)
    return {stage.name: stage.attempt + bool(stage.started_at) for stage in before.stages[first:]}


def first_unpassed_stage(before: RunState) -> str:
    """Return the first stage that has not passed; empty when all have."""
    return next((stage.name for stage in before.stages if stage.state not in ("passed", "skipped")), "")


def _restart_stage(run_dir: Path, stage: StageState, old: StageState | None, runs: dict[str, int]) -> StageState:
    if old is None:
        return stage
    if stage.name not in runs:
        return old
    if runs[stage.name] > old.attempt:
        _move_away(run_dir / stage.directory, f"{ATTEMPT}{old.attempt}")
    return dataclasses.replace(stage, attempt=runs[stage.name])


def _mark_skipped(state: RunState, plan: RunPlan) -> RunState:
    stages = (
        dataclasses.replace(s, state="skipped", cause=None) if s.name in plan.skipped else s for s in state.stages
    )
    return dataclasses.replace(state, stages=tuple(stages))


def _move_away(folder: Path, name: str) -> None:
    for own in list_names(folder):
        if not own.startswith(ATTEMPT):
            make_directory(folder / name)
            rename_path(folder / own, folder / name / own)
