"""The ports that a run needs, looked at before its first stage, so that nobody waits for two stages to learn it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from rlbox.causes.cause import Cause, taken_port
from rlbox.errors import NodeError
from rlbox.job.plan import RunPlan
from rlbox.machine.act.clock import utc_now
from rlbox.machine.act.ports import probe_port
from rlbox.record.act.state import change_stage, load_run_state, new_run_state, write_run_state
from rlbox.report.act.run_view import summary_text
from rlbox.secrets.masks import Masks


def check_ports(run_dir: Path, plan: RunPlan) -> None:
    """Refuse the run when a port that one of its stages needs is taken; the run is recorded as failed there.

    Raises
    ------
    NodeError
        Names port and holder.
    """
    for stage in plan.stages:
        for service in stage.services:
            for name, number in service.ports.items():
                holder = probe_port(number)
                if not holder:
                    continue
                cause = taken_port(name, number, holder)
                if plan.attempt > 1:  # the attempt before has the last word
                    raise NodeError(cause.what, where=str(run_dir), next_step=cause.next_step)
                _record_failure(run_dir, plan, stage.name, cause)
                table = summary_text(load_run_state(run_dir))
                raise NodeError(
                    f"stage {stage.name} FAILED: {cause.what}\n{table}", where=str(run_dir), next_step=cause.next_step
                )


def _record_failure(run_dir: Path, plan: RunPlan, failed: str, cause: Cause) -> None:
    state = new_run_state(plan, supervisor_pid=0)
    for stage in plan.stages:
        if stage.name == failed:
            state = change_stage(state, failed, state="failed", cause=cause)
        else:
            state = change_stage(state, stage.name, state="not started")
    ended = dataclasses.replace(state, state="failed", ended_at=utc_now(), exit_code=NodeError.exit_code)
    write_run_state(run_dir, ended, Masks({}))
