"""Start a run on its backend, follow it or leave it alone, say how it ended, and stop it from any process."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rlbox.app import App
from rlbox.diagnose.cause import Cause
from rlbox.errors import EngineError, Interrupted, MachineError, SpecError, WorkFailed
from rlbox.i18n import _, join
from rlbox.job.names import EVIDENCE_FOLDER, REPORT_PAGE
from rlbox.job.plan import RunPlan
from rlbox.record.disk_lock import DiskLock, LockOwner, create_lock_held_error
from rlbox.record.run_store import RunStore
from rlbox.record.state import RunState, find_run_cause, load_run_state_or_none
from rlbox.record.supervisor_file import (
    SupervisorInfo,
    is_host_supervisor_alive,
    load_supervisor_info,
    write_first_stop_request,
)
from rlbox.report.run_view import format_stage_table_and_notes, open_run_view
from rlbox.report.status import write_passed_run_status_markdown
from rlbox.run.backend import DEFAULT_TARGET, RunStarter, format_resume_command
from rlbox.run.data_disk import create_own_lock_owner, resolve_data_dir_or_default
from rlbox.system.identity import get_user_name_or_uid
from rlbox.system.run_processes import StopSignal, handle_sigint_and_sigterm
from rlbox.target.target import load_target
from rlbox.values import Secret

GRACE_S = 20
"""Seconds between asking and killing: a supervisor ends a stage and its services within 12 s."""

_SETTLE_S = 20.0
_PAUSE_S = 0.05


def stop_or_kill_run(
    run_store: RunStore, run_dir: Path, plan: RunPlan, *, user: str, via: str, grace_s: float = GRACE_S
) -> None:
    """Ask the run to stop, wait for its end, and kill its supervisor after `grace_s` seconds.

    Others may do so at the same time: the first one who asked is remembered. What was killed is ended by
    `RunStore.clean_up_dead_runs_unless_disk_locked` then. Raises `MachineError` when the run belongs to another user.
    """
    with contextlib.suppress(OSError):  # a full or removed run directory: the signal itself is enough
        write_first_stop_request(run_dir, user, via)
    if container := run_store.find_container_runtime(plan.run_id):
        container.stop_unless_gone_requiring_same_user(int(grace_s))
        return
    asked = killed = 0.0
    begun = time.monotonic()
    while run_store.is_locked_by(plan.run_id):
        now, facts = time.monotonic(), load_supervisor_info(run_dir)
        if facts and not asked and is_host_supervisor_alive(run_dir, facts):
            asked = now
            _signal(facts, signal.SIGTERM)
        if facts and not killed and now > (asked or begun) + grace_s and is_host_supervisor_alive(run_dir, facts):
            killed = now
            _signal(facts, signal.SIGKILL)  # its watchdog ends the rest
        if now > (asked or begun) + grace_s + _SETTLE_S:
            return
        time.sleep(_PAUSE_S)


def _signal(facts: SupervisorInfo, number: signal.Signals) -> None:
    try:
        os.kill(facts.pid, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise MachineError(
            _("the run belongs to another user (uid {uid})").format(uid=facts.uid),
            next_step=_("ask that user, or stop it as root"),
        ) from error


_ENGINE_S = 60.0
"""How long an engine may be away, as when it is restarted, before nobody can tell how its container is."""

POLL_S = 0.2


def start_and_follow_stop_on_interrupt(
    app: App,
    run_store: RunStore,
    backend: RunStarter,
    owner: LockOwner,
    write_run: Callable[[], RunPlan],
    secrets: Mapping[str, Secret],
    *,
    detach_once_running: bool,
) -> int:
    """Start a run on a data disk and follow it to its end, or leave it alone; return rlbox's exit code.

    The `owner` has the lock of the disk until the run has; it is written once older runs are reconciled.
    """
    with catch_stop_signals() as interrupt:
        lock = run_store.acquire_disk_lock(owner)
        try:
            _clean_up_dead_runs(app, run_store, lock)
            plan = write_run()
            run_dir = run_store.run_dir(plan.run_id)
            lock.try_write_owner(dataclasses.replace(owner, run=plan.run_id, job=plan.job))
            if interrupt.name:
                what = _("run {run_id} was stopped before it started").format(run_id=plan.run_id)
                raise Interrupted(what, where=str(run_dir), next_step=_resume_command(app, run_store, plan))
            is_process_alive = backend.start(plan, run_dir, secrets, lock)
        except OSError as error:
            raise MachineError(
                _("the run cannot be written down: {strerror}").format(strerror=error.strerror or error),
                where=str(error.filename or run_store.data_dir),
                next_step=_("free space there, or name another disk with --data DIR"),
            ) from error
        finally:
            lock.close_own_handle()
        is_alive = _make_liveness_check(run_store, plan.run_id, is_process_alive)
        if detach_once_running and not interrupt.name:
            return _detach(app, run_store, plan, is_alive)
        show_progress_to_end(app, run_dir, lambda: not interrupt.name and is_alive())
        if interrupt.name:
            app.print_status(_("stopping the run"))
            stop_or_kill_run(run_store, run_dir, plan, user=get_user_name_or_uid(), via=interrupt.name)
    code = reconcile_print_and_write_status_page(app, run_store, run_dir, plan, owner)
    if interrupt.name:
        what = _("run {run_id} was stopped; nothing of it is left running").format(run_id=plan.run_id)
        raise Interrupted(what, where=str(run_dir), next_step=_resume_command(app, run_store, plan))
    return code


def _clean_up_dead_runs(app: App, run_store: RunStore, lock: DiskLock) -> None:
    reconciled = run_store.clean_up_dead_runs_already_locked()
    for run_id, reason in reconciled.unresolved.items():
        app.print_status(_("run {run_id} {why}").format(run_id=run_id, why=reason))
    if reconciled.alive:
        run_id = reconciled.alive[0]
        holder = LockOwner(run=run_id, what="its container runs")
        raise create_lock_held_error(holder, lock.path)


def _detach(app: App, run_store: RunStore, plan: RunPlan, is_alive: Callable[[], bool]) -> int:
    run_id, run_dir = plan.run_id, run_store.run_dir(plan.run_id)
    while is_alive():
        state = load_run_state_or_none(run_dir)
        if state and state.attempt >= plan.attempt and state.state == "running":
            app.output({"run": run_id, "folder": str(run_dir), "state": state.state}, run_id)
            app.print_status(
                _(
                    "run {run_id} keeps running: rlbox attach {run_id}, rlbox logs -f {run_id}, rlbox stop {run_id}"
                ).format(run_id=run_id)
            )
            return 0
        time.sleep(_PAUSE_S)
    return reconcile_print_and_write_status_page(
        app, run_store, run_dir, plan, create_own_lock_owner("the end of a run")
    )


def _make_liveness_check(run_store: RunStore, run_id: str, is_process_alive: Callable[[], bool]) -> Callable[[], bool]:
    """Return what tells whether a run goes on: its supervisor holds the disk, or its container or process is there."""
    answered_s = time.monotonic()

    def is_alive() -> bool:
        nonlocal answered_s
        try:
            result = run_store.is_locked_by(run_id) or is_process_alive()
        except EngineError:
            if time.monotonic() - answered_s > _ENGINE_S:
                raise
            return True
        answered_s = time.monotonic()
        return result

    return is_alive


@contextmanager
def catch_stop_signals() -> Iterator[StopSignal]:
    """Remember Ctrl-C and SIGTERM while the block runs; it is asked for them between polls, so that no step is torn."""
    asked = StopSignal()

    def note(number: int, frame: FrameType | None) -> None:
        asked.request_stop_keeping_first_reason("Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)

    with handle_sigint_and_sigterm(note):
        yield asked


def show_progress_to_end(app: App, run_dir: Path, is_run_alive: Callable[[], bool]) -> None:
    """A terminal that is gone ends the showing, not the run."""
    try:
        with open_run_view(run_dir, live=app.can_show_progress, quiet=app.verbosity < 0) as show:
            _watch(run_dir, is_run_alive, show)
    except OSError:
        _watch(run_dir, is_run_alive, lambda state: None)


def _watch(run_dir: Path, alive: Callable[[], bool], show: Callable[[RunState], None]) -> None:
    asked = 0.0
    while True:
        state = load_run_state_or_none(run_dir)
        if state:
            show(state)
        if time.monotonic() - asked > 5 * POLL_S or (state and state.state != "running"):
            asked = time.monotonic()
            if not alive():
                break
        time.sleep(POLL_S)


def reconcile_print_and_write_status_page(
    app: App, run_store: RunStore, run_dir: Path, plan: RunPlan, lock_as: LockOwner
) -> int:
    """Return rlbox's exit code; `WorkFailed`: the run left nothing that tells how it ended, or did not even begin."""
    found = run_store.clean_up_dead_runs_unless_run_holds_disk(lock_as)
    state = run_store.load_state_marked_failed_if_tampered(run_dir)
    why = found.unresolved.get(plan.run_id, "")
    if state is None or state.attempt < plan.attempt or state.state == "running":
        what = _("run {run_id} did not begin").format(run_id=plan.run_id)
        if why:
            what = _("run {run_id} {why}").format(run_id=plan.run_id, why=why)
        raise WorkFailed(what, where=str(run_dir), next_step=_resume_command(app, run_store, plan))
    stages = [{**dataclasses.asdict(stage), "cause": stage.cause and stage.cause.as_json()} for stage in state.stages]
    result = {"run": state.run_id, "folder": str(run_dir), "state": state.state, "stages": stages}
    app.output(result, format_stage_table_and_notes(state))
    cause = find_run_cause(state)
    if cause:
        app.print_status(_format_cause(cause))
    passed = state.state == "passed" and state.exit_code == 0
    if passed:
        _write_status_page(app, run_dir, plan, state)
    for stage in state.stages:
        page = run_dir / stage.directory / EVIDENCE_FOLDER / REPORT_PAGE
        if stage.cause and page.is_file():
            app.print_status(_("  page:  {file}").format(file=page))
    app.print_status(_("run {run} {state}: {folder}").format(run=state.run_id, state=_(state.state), folder=run_dir))
    if not passed:
        _say_next(app, run_store, plan, state, cause)
    # the record alone makes no 0 of a run that did not pass
    code = state.exit_code or 0
    return code if passed or 0 < code < 256 else WorkFailed.exit_code


def _say_next(app: App, run_store: RunStore, plan: RunPlan, state: RunState, cause: Cause | None) -> None:
    run = state.run_id + _data_option(app, run_store, plan)
    if cause and cause.next_step:
        app.print_next(_(cause.next_step))
    elif state.state == "interrupted":
        app.print_next(_resume_command(app, run_store, plan))
    else:
        app.print_status(_("next: rlbox report {run}, rlbox logs {run} -n 40, rlbox bundle {run}").format(run=run))


def _resume_command(app: App, run_store: RunStore, plan: RunPlan) -> str:
    return format_resume_command(plan) + _data_option(app, run_store, plan)


def _data_option(app: App, run_store: RunStore, plan: RunPlan) -> str:
    """Return ` --data DIR`, or nothing where commands find the run without it."""
    with contextlib.suppress(SpecError, MachineError):
        if plan.cluster or resolve_data_dir_or_default(app, DEFAULT_TARGET, None) == run_store.data_dir:
            return ""
    return f" --data {shlex.quote(str(run_store.data_dir))}"


def _write_status_page(app: App, run_dir: Path, plan: RunPlan, state: RunState) -> None:
    """Write the page of a run that passed; a disk that is full, or another user's, costs the page alone."""
    try:
        archive = load_target(app.project, plan.target).target.disk.archive
        page = write_passed_run_status_markdown(run_dir, plan, state, archive)
        app.print_status(_("status: {file}").format(file=page))
    except (SpecError, OSError) as error:  # the target is no longer there, or the disk is full
        app.print_status(_("status: not written: {error}").format(error=error))


def _format_cause(cause: Cause) -> str:
    lines = [_("cause: {cause}").format(cause=_(cause.what))]
    if cause.line:
        lines.append(_("  line:  {line}").format(line=cause.line))
    if cause.where:
        lines.append(_("  where: {where}").format(where=cause.where))
    if cause.known:
        lines.append(_("  known: {fix} (rlbox fixes show {fix})").format(fix=cause.known))
    return join("\n", lines)
