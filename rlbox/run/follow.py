"""What both places share: the files of a run, the check of its ports, the view while it runs, its end."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from rlbox.app import App
from rlbox.causes.act.known import SIGNATURES_FILE
from rlbox.causes.cause import Cause, taken_port
from rlbox.errors import NodeError, SpecError, WorkFailed
from rlbox.fixes.fix import Fix
from rlbox.fixes.manifest import signature_list
from rlbox.job.job import Job
from rlbox.job.names import EVIDENCE_FOLDER, REPORT_PAGE
from rlbox.job.plan import RunPlan
from rlbox.machine.act.clock import utc_now
from rlbox.machine.act.ports import probe_port
from rlbox.record.act.disk_lock import Holder
from rlbox.record.act.rebuild import last_state
from rlbox.record.act.reconcile import reconcile
from rlbox.record.act.state import RunState, change_stage, load_run_state, new_run_state, run_cause, write_run_state
from rlbox.report.act.run_view import run_view, summary_text
from rlbox.secrets.masks import Masks

SPEC = "spec/"
POLL_S = 0.2


def run_files(app: App, job: Job, target: str, fixes: Iterable[Fix]) -> dict[str, str]:
    """Return what is kept beside a run's plan, by name: the specs it came from, and what is known of failures."""
    files = {"target.toml": app.project.target_file(target), "job.toml": app.project.job_file(job.name)}
    lock = app.project.lock_file(target)
    if lock.exists():
        files["lock.json"] = lock
    texts = {f"{SPEC}{name}": path.read_text(encoding="utf-8") for name, path in files.items()}
    return texts | {SIGNATURES_FILE: signature_list(fixes)}


def specs_digest(files: Mapping[str, str]) -> str:
    """Return what changes when the specs or the lock among the files of a run change; the run is bound to it."""
    specs = {name: text for name, text in files.items() if name.startswith(SPEC)}
    return hashlib.sha256(json.dumps(specs, sort_keys=True).encode()).hexdigest()


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


def follow(app: App, run_dir: Path, alive: Callable[[], bool]) -> None:
    """Show the run until `alive` says that its supervisor ended.

    A terminal that is gone ends the showing, not the run.
    """
    try:
        with run_view(run_dir, live=app.interactive, quiet=app.verbosity < 0) as show:
            _watch(run_dir, alive, show)
    except OSError:
        _watch(run_dir, alive, lambda state: None)


def _watch(run_dir: Path, alive: Callable[[], bool], show: Callable[[RunState], None]) -> None:
    asked = 0.0
    while True:
        state = _state_now(run_dir)
        if state:
            show(state)
        if time.monotonic() - asked > 5 * POLL_S or (state and state.state != "running"):
            asked = time.monotonic()
            if not alive():
                break
        time.sleep(POLL_S)


def _state_now(run_dir: Path) -> RunState | None:
    try:
        return load_run_state(run_dir)
    except SpecError:
        return None


def finish(app: App, data: Path, run_dir: Path, plan: RunPlan, me: Holder) -> int:
    """Settle a run that ended, print how, and return rlbox's exit code.

    Raises
    ------
    WorkFailed
        It left nothing that tells how it ended, or did not even begin.
    """
    found = reconcile(data, me)
    state = last_state(run_dir, plan)
    why = found.unsettled.get(plan.run_id, "")
    if state is None or state.attempt < plan.attempt or state.state == "running":
        what = f"run {plan.run_id} did not begin" if not why else f"run {plan.run_id} {why}"
        raise WorkFailed(what, where=str(run_dir), next_step=f"rlbox run --resume {plan.run_id}")
    app.result(
        {"run": state.run_id, "folder": str(run_dir), "state": state.state, "stages": _stages(state)},
        summary_text(state),
    )
    cause = run_cause(state)
    if cause:
        app.say(cause_text(cause))
    for page in _reports(run_dir, state):
        app.say(f"  page:  {page}")
    if state.plot.path:
        app.say(f"curves: {run_dir / Path(state.plot.path).name}")
    app.say(f"run {state.run_id} {state.state}: {run_dir}")
    return state.exit_code if state.exit_code is not None else WorkFailed.exit_code


def _reports(run_dir: Path, state: RunState) -> list[Path]:
    """Return the pages that explain the stages that failed."""
    pages = (run_dir / stage.directory / EVIDENCE_FOLDER / REPORT_PAGE for stage in state.stages if stage.cause)
    return [page for page in pages if page.is_file()]


def _stages(state: RunState) -> list[dict[str, object]]:
    return [dataclasses.asdict(stage) for stage in state.stages]


def cause_text(cause: Cause) -> str:
    """Return a cause as lines: what, the log line, where, the fix that knows it, what to do next."""
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
