"""Whether a run ended as its own record says, which programs of the run could have written.

The supervisor in a container says each stage's pass over the container's own output, too, which the engine keeps and
nothing in the container can write but the supervisor; and the engine knows its exit code, and when it was started.
What is known by that is kept on the host, for the record can be changed at any time later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from rlbox.diagnose.cause import Cause, ExitInfo, describe_exit, make_contradiction_cause, make_lost_run_cause
from rlbox.record.state import RunState, RunStatus, change_stage
from rlbox.system.clock import utc_now

BEGUN_LINE = "rlbox: run running"
"""What a supervisor says first of all, once per start that was not refused."""

_SEEN = ("ended", "killed", "memory", "engine", "again")


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """How an attempt of a run ended, and the stages that had passed by then."""

    attempt: int
    state: RunStatus
    passed: tuple[str, ...] = ()


def stage_passed_line(stage: str) -> str:
    """Return the line by which a supervisor says that a stage passed."""
    return f"rlbox: {stage}: passed"


def run_outcome(state: RunState) -> RunOutcome:
    """Return what is kept of a run that ended, once its state is believed."""
    passed = tuple(stage.name for stage in state.stages if stage.state == "passed")
    return RunOutcome(attempt=state.attempt, state=state.state, passed=passed)


def verify_against_exit(state: RunState, last: ExitInfo, before: Iterable[str] | None) -> RunState:
    """Return the state, ended as failed where it says more than the supervisor said and the engine saw.

    Parameters
    ----------
    before
        Stages that had passed before this attempt and did not run again; None when nobody knows them.
    """
    if not last.container or last.kind not in _SEEN:
        return state
    passed = [stage.name for stage in state.stages if stage.state == "passed"]
    again = last.kind == "again"
    if last.exit_code == 0 and not again:
        if state.state == "passed":
            return state
        return _contradicted(state, f"it says {state.state}, container {last.container} ended with exit code 0", "")
    lines = last.note.splitlines()
    if again and lines.count(BEGUN_LINE) != 1:  # a start that was refused has said nothing of a stage
        lines, before = [], ()
    said = {name for name in passed if stage_passed_line(name) in lines}
    unsaid = [name for name in passed if name not in said and (before is None or name not in before)]
    if before is None:  # the record of an earlier attempt is not on this host
        unsaid = unsaid if state.attempt == 1 else []
    if not unsaid:
        return state
    if last.kind in ("engine", "killed", "memory"):  # the record may be right, and its end came before the word
        cause = make_lost_run_cause(last, f"before it was seen that stage {unsaid[0]} passed", state.run_id)
        return _failed(state, cause, unsaid[0])
    how = "was started a second time" if again else f"ended with {describe_exit(last.exit_code)}"
    return _contradicted(state, f"it says that stage {unsaid[0]} passed, container {last.container} {how}", unsaid[0])


def verify_against_outcome(state: RunState, verdict: RunOutcome | None) -> RunState:
    """Return the state of a run, as failed where its record was changed after the run had ended."""
    if verdict is None or state.attempt > verdict.attempt:
        return state
    unknown = [s.name for s in state.stages if s.state == "passed" and s.name not in verdict.passed]
    if state.state != verdict.state or unknown or state.attempt < verdict.attempt:
        now = f"{state.state}, {unknown[0]} passed" if unknown else state.state
        told = f"it says {now} of attempt {state.attempt}, attempt {verdict.attempt} had {verdict.state}"
        return _contradicted(state, told, unknown[0] if unknown else "")
    return state


def _contradicted(state: RunState, what: str, stage: str) -> RunState:
    return _failed(state, make_contradiction_cause(what, state.run_id), stage)


def _failed(state: RunState, cause: Cause, stage: str) -> RunState:
    names = [each.name for each in state.stages]
    for name in names[names.index(stage) :] if stage else []:
        if name == stage:
            state = change_stage(state, name, state="failed", cause=cause)
        else:
            state = change_stage(state, name, state="not started", cause=None)
    own = None if stage else cause
    ended_at = state.ended_at or utc_now()
    return dataclasses.replace(state, state="failed", exit_code=1, cause=own, ended_at=ended_at)
