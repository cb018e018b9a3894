"""The last state of a run, also when its `run.json` is torn: then from its events, of which each is a whole line."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_args

from rlbox.causes.cause import Cause
from rlbox.errors import SpecError
from rlbox.files.act.rows import read_rows
from rlbox.job.plan import RunPlan
from rlbox.record.act.journal import EVENTS_FILE
from rlbox.record.act.state import (
    RUN_FILE,
    RunState,
    RunStatus,
    StageStatus,
    change_stage,
    load_run_state,
    new_run_state,
)


def last_state(run_dir: Path, plan: RunPlan) -> RunState | None:
    """Return `run.json` of a run, or what its events say when that cannot be read; None when it never began."""
    path = run_dir / RUN_FILE
    try:
        return load_run_state(run_dir)
    except SpecError:
        if not path.exists() and not (run_dir / EVENTS_FILE).exists():
            return None
    return rebuild_state(run_dir, plan)


def rebuild_state(run_dir: Path, plan: RunPlan) -> RunState:
    """Return the state that the run's events lead to; gates and exit codes of its stages are not among them."""
    state = dataclasses.replace(new_run_state(plan, supervisor_pid=0), started_at="")
    for event in read_events(run_dir):
        state = _after(state, event)
    return state


def read_events(run_dir: Path) -> Iterator[dict[str, Any]]:
    """Return the events of a run in order; torn lines, as a kill leaves them, are passed over."""
    return (event for event in read_rows(run_dir / EVENTS_FILE) if "event" in event)


def _after(state: RunState, event: dict[str, Any]) -> RunState:
    at, now = str(event.get("t", "")), event.get("state")
    match event["event"]:
        case "run" if now in get_args(RunStatus):
            if now == "running":
                state = _begun_again(state)
                return dataclasses.replace(state, state="running", started_at=state.started_at or at)
            return dataclasses.replace(state, state=cast(RunStatus, now), ended_at=at, exit_code=event.get("exit_code"))
        case "stage" if now in get_args(StageStatus):
            changes: dict[str, Any] = {"state": now}
            if now == "starting":
                changes |= {"started_at": at, "ended_at": "", "cause": None}
            elif now not in ("waiting", "running"):
                changes["ended_at"] = at
            if event.get("cause"):
                changes["cause"] = Cause(kind="interrupted" if now == "interrupted" else "lost", what=event["cause"])
            return change_stage(state, str(event.get("stage")), **changes)
        case _:
            return state


def _begun_again(state: RunState) -> RunState:
    """A supervisor starts: what did not pass before waits again."""
    for stage in state.stages:
        if stage.state not in ("passed", "skipped"):
            state = change_stage(state, stage.name, state="waiting", cause=None, ended_at="")
    return state
