"""What both places share: the files of a run, the check of its ports, the view while it runs, its end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from rlbox.act.ports import probe_port
from rlbox.act.run_state import (
    RUN_FILE,
    RunState,
    change_stage,
    load_run_state,
    new_run_state,
    utc_now,
    write_run_state,
)
from rlbox.cli.app import App
from rlbox.errors import Interrupted, NodeError, WorkFailed
from rlbox.fixes.manifest import signature_list
from rlbox.plan.causes import Cause, interrupted, taken_port
from rlbox.plan.masks import Masks
from rlbox.plan.run import RunPlan
from rlbox.report.known_causes import SIGNATURES_FILE
from rlbox.report.run_view import run_view, summary_text
from rlbox.spec.job import Job
from rlbox.spec.load import load_fixes

POLL_S = 0.2


def run_files(app: App, job: Job, target: str) -> dict[str, str]:
    """Return what is kept beside a run's plan, by name: the specs it came from, and what is known of failures."""
    files = {"target.toml": app.project.target_file(target), "job.toml": app.project.job_file(job.name)}
    lock = app.project.lock_file(target)
    if lock.exists():
        files["lock.json"] = lock
    texts = {f"spec/{name}": path.read_text(encoding="utf-8") for name, path in files.items()}
    return texts | {SIGNATURES_FILE: signature_list(load_fixes(app.project))}


def check_ports(run_dir: Path, plan: RunPlan) -> None:
    """Refuse the run when a port that one of its stages needs is taken; the run is recorded as failed there.

    It is checked before the first stage, so that nobody waits for two stages to learn it.

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


def follow(app: App, run_dir: Path, alive: Callable[[], bool]) -> None:
    """Show the run until `alive` says that its supervisor ended."""
    with run_view(run_dir, live=app.interactive, quiet=app.verbosity < 0) as show:
        asked = 0.0
        while True:
            state = load_run_state(run_dir) if (run_dir / RUN_FILE).exists() else None
            if state:
                show(state)
            if time.monotonic() - asked > 5 * POLL_S or (state and state.state != "running"):
                asked = time.monotonic()
                if not alive():
                    break
            time.sleep(POLL_S)


def finish(app: App, run_dir: Path, plan: RunPlan, exit_code: int, note: str, *, stopped: bool) -> int:
    """Print the end of a run and return rlbox's exit code.

    A supervisor that died without a last word (killed, out of memory, engine gone) is recorded as a failed run, or as
    an interrupted one when the user had asked to stop.
    """
    state = _last_state(run_dir, plan, exit_code, note, stopped)
    app.result(
        {"run": state.run_id, "folder": str(run_dir), "state": state.state, "stages": _stages(state)},
        summary_text(state),
    )
    cause = next((stage.cause for stage in state.stages if stage.cause), None)
    if cause:
        app.say(_cause_text(cause))
    if state.plot.path:
        app.say(f"curves: {run_dir / Path(state.plot.path).name}")
    app.say(f"run {state.run_id} {state.state}: {run_dir}")
    return state.exit_code if state.exit_code is not None else 1


def _last_state(run_dir: Path, plan: RunPlan, exit_code: int, note: str, stopped: bool) -> RunState:
    known = (run_dir / RUN_FILE).exists()
    state = load_run_state(run_dir) if known else new_run_state(plan, supervisor_pid=0)
    if state.state != "running":
        return state
    what = f"the supervisor {'died' if known else 'did not start'} with exit code {exit_code}: {note.strip()[-500:]}"
    lost = interrupted("Ctrl-C") if stopped else Cause(kind="bug", what=what.removesuffix(": "))
    began = [stage.name for stage in state.stages if stage.state in ("starting", "running")]
    blamed = began[0] if began else next(stage.name for stage in state.stages if stage.state == "waiting")
    for stage in state.stages:
        if stage.name == blamed:
            now = "interrupted" if stopped else "failed"
            state = change_stage(state, stage.name, state=now, ended_at=utc_now(), cause=lost)
        elif stage.state == "waiting":
            state = change_stage(state, stage.name, state="not started")
    ended = dataclasses.replace(
        state,
        state="interrupted" if stopped else "failed",
        ended_at=utc_now(),
        exit_code=Interrupted.exit_code if stopped else WorkFailed.exit_code,
    )
    write_run_state(run_dir, ended, Masks({}))
    return ended


def _stages(state: RunState) -> list[dict[str, object]]:
    return [dataclasses.asdict(stage) for stage in state.stages]


def _cause_text(cause: Cause) -> str:
    lines = [f"cause: {cause.what}"]
    if cause.line:
        lines.append(f"  line:  {cause.line}")
    if cause.where:
        lines.append(f"  where: {cause.where}")
    if cause.known:
        lines.append(f"  known: {cause.known} (rlbox fixes show {cause.known})")
    if cause.next_step:
        lines.append(f"  next:  {cause.next_step}")
    return "\n".join(lines)
