"""Why a stage was stopped that hung, in one sentence."""

from __future__ import annotations

from rlbox.causes.cause import Cause, stage_log
from rlbox.hang.judge import Stall
from rlbox.job.names import EVIDENCE_FOLDER, HANG_PAGE
from rlbox.job.plan import StagePlan


def hung(stage: StagePlan, stall: Stall, waits: str) -> Cause:
    """The stage showed no sign of life for longer than its phase may; `waits` says what its first process waits for."""
    phase, name = stall.phase, stage.name
    limit = f"limits.silence_s of stage {name}"
    if stall.rule == "steps":
        what = f"stage {name} made no step for {stall.silent_s:.0f} s, usually {stall.step_s:.3g} s apart,"
        what += " its processes do nothing, and was stopped"
        limit = f"limits.steps of stage {name}"
    elif phase.name:
        what = f"stage {name} hung in phase {phase.name}: no sign of life for {stall.limit_s:g} s, and was stopped"
    else:
        what = f"stage {name} wrote nothing for {stall.limit_s:g} s and was stopped"
    own = next((own for own in stage.phases if own.name == phase.name), None)
    if own and stall.rule == "silence":
        limit = f"silence_s of phase {own.name}"
    return Cause(
        kind="silence",
        what=what,
        where=stage_log(stage),
        next_step="; ".join(part for part in (phase.remedy, f"if that was no hang, raise {limit}") if part),
        phase=phase.name,
        waits=waits,
        report=report_path(stage),
    )


def report_path(stage: StagePlan) -> str:
    """Return where the report of a hang lies, below the run directory."""
    return f"{stage.directory}/{EVIDENCE_FOLDER}/{HANG_PAGE}"
