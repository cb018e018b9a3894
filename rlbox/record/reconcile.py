"""Give a run whose supervisor is gone the end that the facts tell, once.

A backend whose runs are carried by something apart from the processes of this machine, as by a container, writes a
`ContainerRef` on this host before it makes that, and returns a `RuntimeHandle` that asks about it and ends it: so the
runs of a data disk are reconciled without knowing any backend.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Protocol

from rlbox.amounts import utc_now
from rlbox.diagnose.cause import Cause, get_run_exit_code, make_interrupted_cause
from rlbox.errors import LockHeld
from rlbox.i18n import _, join
from rlbox.job.plan import RunPlan
from rlbox.record.host_record import ContainerRef, mark_failed_if_container_contradicts
from rlbox.record.state import (
    EVENTS_FILE,
    RUN_FILE,
    RunState,
    create_run_state,
    find_run_cause,
    load_run_state_or_none,
    replace_stage,
    write_run_state,
)
from rlbox.record.supervisor_exit import ExitKind, SupervisorExit, make_lost_run_cause
from rlbox.record.supervisor_file import describe_stop_requester, is_same_boot, load_supervisor_info
from rlbox.secrets.masks import SecretMasker
from rlbox.system.identity import read_boot_identity
from rlbox.system.json_files import read_json_object_or_empty
from rlbox.system.run_processes import RunProcesses, StopSignal
from rlbox.system.safe_files import list_directory_empty_if_missing, lstat_path, open_regular_fd, remove_file

_DRAFTS = (f".{RUN_FILE}.*", ".reserve", ".plan.json.*")
_ACTIVE_STATES = ("starting", "running")

FINISHED_STATES = ("passed", "failed", "interrupted")

RuntimeStatus = Literal["made", "living", "ended", "gone"]


class RuntimeHandle(Protocol):
    """What carries a run, as its backend reaches it; each may raise `RlboxError` when that does not answer."""

    def status(self) -> RuntimeStatus: ...

    def assume_ended_and_find_exit_info_unless_removed(self) -> SupervisorExit | None: ...

    def stop_unless_gone_requiring_same_user(self, grace_s: int) -> None:
        """Ask it to end, wait, and end it after `grace_s` seconds; one that is gone has ended."""

    def remove_unless_gone_requiring_same_user(self) -> None: ...


def ensure_final_state_matches_exit_info(
    run_dir: Path,
    plan: RunPlan,
    exit_info: SupervisorExit,
    earlier_passed_stages: Iterable[str] = (),
    runtime_exit_info: SupervisorExit | None = None,
) -> RunState:
    """Return the state of an ended run; when its supervisor left no last word, it is written now, from the facts.

    All stages passed: the run passed. Somebody had asked it to stop: interrupted. Else
    it failed, in the stage that was going on or between two. `runtime_exit_info` is what its container said. Raises
    `OSError`.
    """
    state = load_run_state_or_none(run_dir) or create_run_state(plan, supervisor_pid=0)
    _remove_draft_files(run_dir)
    true = mark_failed_if_container_contradicts(state, runtime_exit_info or exit_info, earlier_passed_stages)
    if true.state != "running":
        if true != state or not read_json_object_or_empty(run_dir / RUN_FILE):
            write_run_state(run_dir, true, SecretMasker({}))
        return true
    ended = _final_state(true, exit_info, describe_stop_requester(run_dir))
    write_run_state(run_dir, ended, SecretMasker({}))
    _append_end_event(run_dir, ended)
    return ended


def _describe_progress(state: RunState) -> str:
    for stage in state.stages:
        if stage.state in _ACTIVE_STATES:
            return _("while stage {name} was {state}").format(name=stage.name, state=_(stage.state))
    waiting = [stage.name for stage in state.stages if stage.state == "waiting"]
    if not waiting:
        return _("after its last stage")
    first = not any(stage.state == "passed" for stage in state.stages)
    before = _("before its first stage, {name}, began") if first else _("before stage {name} began")
    return before.format(name=waiting[0])


def _final_state(state: RunState, last: SupervisorExit, stop_requester: str | None) -> RunState:
    if all(stage.state in ("passed", "skipped") for stage in state.stages):
        return dataclasses.replace(state, state="passed", ended_at=utc_now(), exit_code=0)
    known = find_run_cause(state)  # the stage had its last word, the run had not
    cause = known or _end_cause(state, last, stop_requester)
    now: Literal["interrupted", "failed"] = "interrupted" if cause.kind == "interrupted" else "failed"
    going = next((stage.name for stage in state.stages if stage.state in _ACTIVE_STATES), "")
    for stage in state.stages:
        if stage.name == going:
            state = replace_stage(state, stage.name, state=now, ended_at=utc_now(), cause=cause)
        elif stage.state == "waiting":
            state = replace_stage(state, stage.name, state="not started")
    own = None if going or known else cause
    # a supervisor that refused to go on said its exit code itself
    refused = cause.kind == "lost" and last.kind == "ended" and 0 < last.exit_code <= LockHeld.exit_code
    exit_code = last.exit_code if refused else get_run_exit_code(cause)
    return dataclasses.replace(state, state=now, ended_at=utc_now(), exit_code=exit_code, cause=own)


def _end_cause(state: RunState, last: SupervisorExit, stop_requester: str | None) -> Cause:
    cause = make_lost_run_cause(last, _describe_progress(state), state.run_id)
    if not stop_requester:
        return cause
    told = make_interrupted_cause(stop_requester)
    return dataclasses.replace(told, what=join("", (told.what, _("; then "), cause.what)))


def _append_end_event(run_dir: Path, state: RunState) -> None:
    cause = find_run_cause(state)
    event = {"t": state.ended_at, "stage": "", "event": "run", "state": state.state, "exit_code": state.exit_code}
    line = json.dumps({**event, "settled": True, "cause": cause.what if cause else ""}, ensure_ascii=False)
    with contextlib.suppress(OSError):
        handle = open_regular_fd(run_dir / EVENTS_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with os.fdopen(handle, "ab") as file:
            file.write(f"\n{line}\n".encode("utf-8", "replace"))  # the line before may be torn


def _remove_draft_files(run_dir: Path) -> None:
    with contextlib.suppress(OSError):
        for name in list_directory_empty_if_missing(run_dir):
            if any(fnmatch.fnmatch(name, pattern) for pattern in _DRAFTS):
                remove_file(run_dir / name)


def is_run_finished(run_dir: Path) -> bool:
    return read_json_object_or_empty(run_dir / RUN_FILE).get("state") in FINISHED_STATES


def find_exit_info_unless_never_started(
    runtime: RuntimeHandle, status: RuntimeStatus, container_ref: ContainerRef, run_dir: Path
) -> SupervisorExit | None:
    if status == "made":
        return None
    last = runtime.assume_ended_and_find_exit_info_unless_removed() if status == "ended" else None
    if last is None and (status == "ended" or container_ref.started_at or load_supervisor_info(run_dir) is not None):
        return SupervisorExit(kind="removed", container_name=container_ref.name)
    return last


def kill_leftovers_and_ensure_final_state_if_begun(
    run_dir: Path, plan: RunPlan, exit_info: SupervisorExit | None, earlier_passed_stages: Iterable[str]
) -> RunState | None:
    facts, life = load_supervisor_info(run_dir), read_boot_identity()
    elsewhere = plan.host not in ("", life.host)
    if plan.runs_without_container:
        RunProcesses(run_dir, StopSignal()).stop_all_and_list_survivors()
    wrote = any(lstat_path(run_dir / name) for name in (RUN_FILE, EVENTS_FILE))
    began = facts or wrote or exit_info is not None
    if not began:
        return None
    known, seen = exit_info or SupervisorExit(kind="gone"), exit_info and exit_info.kind in ("memory", "ended", "again")
    if facts and not is_same_boot(facts, life) and not seen:
        ended: ExitKind = "restarted" if facts.boot_id == life.boot_id else "rebooted"
        known = SupervisorExit(kind="elsewhere" if elsewhere else ended, host=plan.host)
    return ensure_final_state_matches_exit_info(run_dir, plan, known, earlier_passed_stages, exit_info)
