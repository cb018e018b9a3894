"""Give a run whose supervisor is gone the end that the facts tell, once."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from pathlib import Path
from typing import Literal

from rlbox.causes.cause import Cause, LastWord, exit_code, interrupted, lost_cause
from rlbox.errors import LockHeld
from rlbox.files.act.rows import read_table
from rlbox.job.plan import RunPlan
from rlbox.machine.act.clock import utc_now
from rlbox.record.act.journal import EVENTS_FILE
from rlbox.record.act.rebuild import last_state
from rlbox.record.act.state import (
    RUN_FILE,
    PlotResult,
    RunState,
    change_stage,
    new_run_state,
    run_cause,
    write_run_state,
)
from rlbox.record.act.supervisor_file import stop_asked
from rlbox.secrets.masks import Masks

_GOING = ("starting", "running")


def settle_run(run_dir: Path, plan: RunPlan, last: LastWord) -> RunState:
    """Return the state of an ended run; when its supervisor left no last word, it is written now, from the facts.

    All stages passed: the run passed, whatever became of its curves. Somebody had asked it to stop: interrupted. Else
    it failed, in the stage that was going on or between two.

    Raises
    ------
    OSError
        The disk is full or gone.
    """
    state = last_state(run_dir, plan) or new_run_state(plan, supervisor_pid=0)
    forget_drafts(run_dir)
    if state.state != "running":
        if not read_table(run_dir / RUN_FILE):
            write_run_state(run_dir, state, Masks({}))
        return state
    ended = _ended(state, last, stop_asked(run_dir))
    write_run_state(run_dir, ended, Masks({}))
    _record(run_dir, ended)
    return ended


def moment(state: RunState) -> str:
    """Return where in the run it was, in words that end a sentence."""
    for stage in state.stages:
        if stage.state in _GOING:
            return f"while stage {stage.name} was {stage.state}"
    waiting = [stage.name for stage in state.stages if stage.state == "waiting"]
    if not waiting:
        return "after its last stage"
    first = not any(stage.state == "passed" for stage in state.stages)
    return f"before its first stage, {waiting[0]}, began" if first else f"before stage {waiting[0]} began"


def _ended(state: RunState, last: LastWord, asked: str) -> RunState:
    if all(stage.state in ("passed", "skipped") for stage in state.stages):
        plot = state.plot if state.plot.state else PlotResult(state="failed", detail=last.end)
        return dataclasses.replace(state, state="passed", ended_at=utc_now(), exit_code=0, plot=plot)
    known = run_cause(state)  # the stage had its last word, the run had not
    cause = known or _cause(state, last, asked)
    now: Literal["interrupted", "failed"] = "interrupted" if cause.kind == "interrupted" else "failed"
    going = next((stage.name for stage in state.stages if stage.state in _GOING), "")
    for stage in state.stages:
        if stage.name == going:
            state = change_stage(state, stage.name, state=now, ended_at=utc_now(), cause=cause)
        elif stage.state == "waiting":
            state = change_stage(state, stage.name, state="not started")
    own = None if going or known else cause
    return dataclasses.replace(state, state=now, ended_at=utc_now(), exit_code=_code(cause, last), cause=own)


def _code(cause: Cause, last: LastWord) -> int:
    """Return the run's exit code; a supervisor that refused to go on said it itself."""
    refused = cause.kind == "lost" and last.end == "ended" and 0 < last.exit_code <= LockHeld.exit_code
    return last.exit_code if refused else exit_code(cause)


def _cause(state: RunState, last: LastWord, asked: str) -> Cause:
    cause = lost_cause(last, moment(state), state.run_id)
    if not asked:
        return cause
    told = interrupted(asked)
    return dataclasses.replace(told, what=f"{told.what}; then {cause.what}")


def _record(run_dir: Path, state: RunState) -> None:
    """Append the end to the events; a torn last line is ended first."""
    cause = run_cause(state)
    event = {"t": state.ended_at, "stage": "", "event": "run", "state": state.state, "exit_code": state.exit_code}
    line = json.dumps({**event, "settled": True, "cause": cause.what if cause else ""}, ensure_ascii=False)
    with contextlib.suppress(OSError), open(run_dir / EVENTS_FILE, "ab+") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 1))
        torn = file.read(1) not in (b"", b"\n")
        file.write((("\n" if torn else "") + line + "\n").encode("utf-8", "replace"))


def forget_drafts(run_dir: Path) -> None:
    """Remove what writers left that were killed in the middle."""
    for pattern in (f".{RUN_FILE}.*", ".reserve", ".processes.json.*", ".supervisor.json.*"):
        for path in run_dir.glob(pattern):
            with contextlib.suppress(OSError):
                path.unlink()
