"""Carry out a whole run: its stages in order up to the first that fails, then the curves."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlbox.act.bench import Bench
from rlbox.act.doctor_fixes import probe_fixes
from rlbox.act.interrupt import Interrupt
from rlbox.act.journal import Event, Journal
from rlbox.act.processes import RunProcesses, become_subreaper
from rlbox.act.run_state import PlotResult, RunStatus, StageState, StageStatus, new_run_state, utc_now
from rlbox.act.stage import StageEnd, carry_out_stage
from rlbox.errors import NodeError
from rlbox.plan.causes import Cause, absent_fix, ended, exit_code, interrupted, supervisor_bug
from rlbox.plan.masks import Masks
from rlbox.plan.run import RunPlan, StagePlan
from rlbox.values import Command

BUG_FILE = "supervisor-error.log"
METRICS_FILE = "metrics.jsonl"
PLOT_LOG = "plot.log"
_PLOT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class StageFailure:
    """A stage that failed, for whoever collects evidence; `state` is what `run.json` says of it."""

    run_dir: Path
    plan: RunPlan
    end: StageEnd
    state: StageState
    cause: Cause
    masks: Masks


def carry_out_run(
    plan: RunPlan,
    run_dir: Path,
    *,
    interrupt: Interrupt,
    masks: Masks,
    on_failure: Callable[[StageFailure], Cause],
    on_event: Callable[[Event], None],
) -> int:
    """Carry out `plan` in `run_dir` and return the exit code (STYLE, exit codes): 0, 1, 3, 5, 7 or 130.

    Parameters
    ----------
    on_failure
        Called once all processes of a failed stage are gone; it returns the cause with the line that shows it.
    on_event
        Called with every event after it was written.
    """
    become_subreaper()
    journal = Journal(run_dir, new_run_state(plan, os.getpid()), masks, on_event)
    processes = RunProcesses(plan.run_id, interrupt)
    bench = Bench(plan=plan, run_dir=run_dir, journal=journal, processes=processes, interrupt=interrupt)
    journal.change_run("run", state="running")
    try:
        cause = _carry_out_stages(bench, on_failure)
    except Exception as error:  # a bug must not leave processes behind, nor a run that looks alive
        cause = supervisor_bug(error, _write_bug(run_dir))
        _end_stages(bench, cause)
    finally:
        processes.stop_all()
    journal.change_run("plot", plot=_draw(bench))
    journal.close()
    journal.change_run("run", state=_run_status(cause), ended_at=utc_now(), exit_code=exit_code(cause))
    return exit_code(cause) if journal.saved else NodeError.exit_code


def _carry_out_stages(bench: Bench, on_failure: Callable[[StageFailure], Cause]) -> Cause | None:
    if absent := _check_fixes(bench):
        bench.journal.change_stage(bench.plan.stages[0].name, state="failed", ended_at=utc_now(), cause=absent)
        _end_stages(bench, absent)
        return absent
    for stage in bench.plan.stages:
        if bench.interrupt.name:
            cause: Cause | None = interrupted(bench.interrupt.name)
        else:
            cause = _carry_out_one(bench, stage, on_failure)
        if cause:
            _end_stages(bench, cause)
            return cause
    return None


def _check_fixes(bench: Bench) -> Cause | None:
    """Return why no stage can be started: a fix of the image that does not hold in the container as it was started."""
    if bench.plan.place != "docker":
        return None
    errors = [finding for finding in probe_fixes("run") if finding.level == "error"]
    if not errors:
        return None
    first = errors[0]
    return absent_fix(first.id, first.seen or first.title, first.remedy, len(errors) - 1)


def _carry_out_one(bench: Bench, stage: StagePlan, on_failure: Callable[[StageFailure], Cause]) -> Cause | None:
    end = carry_out_stage(bench, stage)
    if end.cause is None:
        bench.journal.change_stage(stage.name, state="passed", ended_at=end.ended_at)
        return None
    cause = end.cause
    if cause.kind != "interrupted":
        cause = _collect(bench, end, cause, on_failure)
    state: StageStatus = "interrupted" if cause.kind == "interrupted" else "failed"
    bench.journal.change_stage(stage.name, state=state, ended_at=end.ended_at, cause=cause)
    return cause


def _collect(bench: Bench, end: StageEnd, cause: Cause, on_failure: Callable[[StageFailure], Cause]) -> Cause:
    state = next(s for s in bench.journal.state.stages if s.name == end.stage.name)
    failure = StageFailure(
        run_dir=bench.run_dir, plan=bench.plan, end=end, state=state, cause=cause, masks=bench.journal.masks
    )
    try:
        return on_failure(failure)
    except Exception as error:  # evidence is worth having, but never worth losing the cause
        bench.journal.event(end.stage.name, "evidence-failed", why=f"{type(error).__name__}: {error}")
        return cause


def _end_stages(bench: Bench, cause: Cause) -> None:
    """Mark what will not run any more."""
    for state in bench.journal.state.stages:
        if state.state == "waiting":
            bench.journal.change_stage(state.name, state="not started")
        elif state.state in ("starting", "running"):
            bench.journal.change_stage(state.name, state="failed", ended_at=utc_now(), cause=cause)


def _run_status(cause: Cause | None) -> RunStatus:
    if cause is None:
        return "passed"
    return "interrupted" if cause.kind == "interrupted" else "failed"


def _write_bug(run_dir: Path) -> str:
    try:
        (run_dir / BUG_FILE).write_text(traceback.format_exc())
    except OSError:
        return ""
    return BUG_FILE


def _draw(bench: Bench) -> PlotResult:
    """Draw the curves, best effort: whatever happens here changes nothing about the run."""
    plan, begun = bench.plan, time.monotonic()
    if not plan.plot or bench.interrupt.name or not any(bench.run_dir.rglob(METRICS_FILE)):
        return PlotResult(state="skipped")
    command = Command(argv=plan.plot, env=plan.env, cwd=str(bench.run_dir))
    try:
        child = bench.processes.start(command, bench.run_dir / PLOT_LOG, stage="plot", part="plot")
    except OSError as error:
        return PlotResult(state="failed", detail=f"{plan.plot[0]}: {error.strerror}")
    while (code := child.poll()) is None and time.monotonic() - begun < _PLOT_S and not bench.interrupt.name:
        time.sleep(0.05)
    bench.processes.stop_all()
    if code is None:
        return PlotResult(state="failed", detail=bench.interrupt.name or f"not done after {_PLOT_S:g} s")
    if code or not Path(plan.curves).is_file():
        return PlotResult(state="failed", detail=f"{ended(code)}, see {PLOT_LOG}")
    return PlotResult(state="drawn", path=plan.curves)
