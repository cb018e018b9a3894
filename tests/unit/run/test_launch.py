"""How a run that ended is told, and the exit code of whoever asks."""

from __future__ import annotations

import dataclasses
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from fakes import CHECKOUT

from rlbox.app import App
from rlbox.config.project import Project
from rlbox.errors import LockHeld, WorkFailed
from rlbox.job.plan import ProcessPaths, RunPlan
from rlbox.record.disk_lock import LockOwner, acquire_disk_lock
from rlbox.record.run_store import RunsNotReconciled, RunStore
from rlbox.record.state import RunState, StageState, create_run_state, write_run_state
from rlbox.run.backend import open_container_runtime
from rlbox.run.data_disk import create_own_lock_owner
from rlbox.run.launch import _detach, reconcile_print_and_write_status_page
from rlbox.secrets.masks import SecretMasker

PLAN = RunPlan(
    run_id="r-1",
    job="r",
    target="local",
    place="here",
    profile="",
    params={},
    paths=ProcessPaths(run="/r", job="/r/job", data="/", python="python"),
    env={},
    stages=(),
)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"state": "passed", "exit_code": 0}, 0),
        ({"state": "passed", "exit_code": None}, 1),
        ({"state": "failed", "exit_code": 7}, 7),
        ({"state": "interrupted", "exit_code": 130}, 130),
        ({"state": "failed", "exit_code": None}, 1),
        ({"state": "failed", "exit_code": 0}, 1),
        ({"state": "failed", "exit_code": 256}, 1),
        ({"state": "failed", "exit_code": -1}, 1),
        ({"state": "failed", "exit_code": 10**30}, 1),
    ],
    ids=str,
)
def test_a_run_that_did_not_pass_never_ends_with_0(tmp_path: Path, changes: dict[str, Any], code: int) -> None:
    """Its record can be changed by programs of later runs; of an exit code a shell sees the last eight bits."""
    run_store = RunStore(data_dir=tmp_path, open_runtime=open_container_runtime)
    run_dir = run_store.create_run_dir(PLAN, None, {})
    stages = (StageState(name="a", title="a", directory="stages/1-a"),)
    state: RunState = dataclasses.replace(create_run_state(PLAN, supervisor_pid=1), stages=stages, **changes)
    write_run_state(run_dir, state, SecretMasker({}))
    app = App(project=Project(folder=CHECKOUT))
    assert reconcile_print_and_write_status_page(app, run_store, run_dir, PLAN, LockOwner(what="a test")) == code
    write_run_state(run_dir, dataclasses.replace(state, stages=()), SecretMasker({}))
    assert reconcile_print_and_write_status_page(app, run_store, run_dir, PLAN, LockOwner(what="a test")) == code


def test_lock_of_a_busy_command_line_says_whose_it_is_and_since_when(tmp_path: Path) -> None:
    lock = acquire_disk_lock(tmp_path, create_own_lock_owner("the ends of runs"))
    with pytest.raises(LockHeld, match=rf"\(uid {os.getuid()}\) on {socket.gethostname()}, since \d{{4}}-"):
        acquire_disk_lock(tmp_path, LockOwner(), 0.0)
    lock.close_own_handle()


def test_end_of_a_detached_run_is_settled_in_the_callers_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owners: list[LockOwner] = []
    monkeypatch.setattr(
        RunStore,
        "clean_up_dead_runs_unless_run_holds_disk",
        lambda _, owner: owners.append(owner) or RunsNotReconciled(),
    )
    run_store = RunStore(data_dir=tmp_path, open_runtime=open_container_runtime)
    run_store.create_run_dir(PLAN, None, {})
    with pytest.raises(WorkFailed, match="did not begin"):
        _detach(App(project=Project(folder=CHECKOUT)), run_store, PLAN, lambda: False)
    assert [(owner.uid, owner.host) for owner in owners] == [(os.getuid(), socket.gethostname())]
