"""The view of a run while it goes on, and its end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from rlbox.app import App
from rlbox.causes.cause import Cause
from rlbox.errors import SpecError, WorkFailed
from rlbox.job.names import EVIDENCE_FOLDER, REPORT_PAGE
from rlbox.job.plan import RunPlan
from rlbox.record.act.disk_hold import Holder
from rlbox.record.act.ledger import Ledger
from rlbox.record.act.rebuild import last_state
from rlbox.record.act.state import RunState, load_run_state, run_cause
from rlbox.report.act.run_view import run_view, summary_text

POLL_S = 0.2


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


def finish(app: App, ledger: Ledger, run_dir: Path, plan: RunPlan, me: Holder) -> int:
    """Settle a run that ended, print how, and return rlbox's exit code.

    Raises
    ------
    WorkFailed
        It left nothing that tells how it ended, or did not even begin.
    """
    found = ledger.settle(me)
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
