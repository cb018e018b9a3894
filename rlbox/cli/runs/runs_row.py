"""What `rlbox runs` says of one run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlbox.amounts import duration_text, moment

if TYPE_CHECKING:
    from rlbox.record.ledger import Ledger, Settled
    from rlbox.record.state import RunState, StageState

_GOING = ("starting", "running")


def run_row(ledger: Ledger, run_dir: Path, found: Settled) -> dict[str, Any]:
    """Return what `rlbox runs` says of one run; its `state` is never a guess."""
    from rlbox.errors import RlboxError
    from rlbox.record.folder import load_plan
    from rlbox.record.state import run_cause

    row: dict[str, Any] = dict.fromkeys(("run", "state", "stage", "phase", "time", "cause", "started_at"), "")
    row |= {"run": run_dir.name, "attempt": 1, "exit_code": None, "notes": []}
    try:
        state = ledger.state(run_dir, load_plan(run_dir))
    except RlboxError as error:
        return row | {"state": "unknown", "cause": error.what}
    alive = run_dir.name in found.alive or (found.holder is not None and found.holder.run == run_dir.name)
    if state is None:
        return row | {"state": "starting" if alive else "never started"}
    cause, stage = run_cause(state), _stage(state)
    shown = state.state if alive or state.state != "running" else "unknown"
    return row | {
        "state": shown,
        "stage": stage.name if stage else "",
        "phase": stage.phase if stage and stage.state in _GOING else "",
        "time": _took(state),
        "cause": cause.what if cause else found.unsettled.get(run_dir.name, ""),
        "started_at": state.started_at,
        "attempt": state.attempt,
        "exit_code": state.exit_code,
        "notes": list(state.notes),
    }


def _stage(state: RunState) -> StageState | None:
    """Return the stage that goes on, or the one that the run ended in."""
    going = [stage for stage in state.stages if stage.state in (*_GOING, "failed", "interrupted")]
    return going[0] if going else None


def _took(state: RunState) -> str:
    begun, ended = moment(state.started_at), moment(state.ended_at)
    return duration_text((ended or time.time()) - begun) if begun is not None else ""
