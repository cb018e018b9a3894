"""The page of a run that passed: what held, what was met, what it made, what comes next (P044, P007)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from fakes import CHECKOUT

from rlbox.app import App
from rlbox.config.project import Project
from rlbox.job.job import load_job
from rlbox.job.params import resolve_params
from rlbox.job.plan import ProcessPaths, RunPlan, plan_run
from rlbox.record.disk_lock import LockOwner
from rlbox.record.run_store import RunStore
from rlbox.record.state import EVENTS_FILE, RunState, create_run_state, replace_stage, write_run_state
from rlbox.report.status import write_passed_run_status_markdown
from rlbox.run.backend import open_container_runtime
from rlbox.run.launch import reconcile_print_and_write_status_page
from rlbox.secrets.masks import SecretMasker

PROJECT = Project(folder=CHECKOUT)


def passed(folder: Path) -> tuple[RunPlan, RunState]:
    """A run of holdem whose stages all passed, one of them at its second attempt."""
    job = load_job(PROJECT, "holdem")
    paths = ProcessPaths(run=str(folder), job=str(folder / "job"), data=str(folder.parent), python="python")
    plan = plan_run(job, resolve_params(job, "", {}), paths, run_id="h-1", place="here", target=job.target)
    state = dataclasses.replace(create_run_state(plan, supervisor_pid=1), state="passed", exit_code=0)
    for stage in plan.stages:
        state = replace_stage(state, stage.name, state="passed", seconds=65.0)
    return plan, replace_stage(state, "smoke", attempt=2)


@pytest.mark.parametrize("mounted", [True, False])
def test_all_that_a_snapshot_says(tmp_path: Path, mounted: bool) -> None:
    run_dir, archive = tmp_path / "run", tmp_path / "autodl-fs"
    run_dir.mkdir()
    if mounted:
        archive.mkdir()
    events = [{"stage": "smoke", "state": "failed", "cause": "cannot find -lcudart"}, {"stage": "smoke"}, {"cause": ""}]
    events += [{"stage": "x", "cause": "\x1b[2Jred" + "y" * 999}]
    (run_dir / EVENTS_FILE).write_text("".join(json.dumps(event) + "\n" for event in events) + "{torn")
    plan, state = passed(run_dir)
    text = write_passed_run_status_markdown(run_dir, plan, state, str(archive)).read_text("utf-8")
    assert "- megatron-only: passed in 1 min 05 s\n" in text
    assert "- smoke: passed in 1 min 05 s, attempt 2\n" in text
    assert "- smoke: cannot find -lcudart\n" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) < 400
    assert f"- {run_dir}\n- {tmp_path}/exp/holdem_smoke_beijing/latest_checkpointed_iteration.txt\n" in text
    assert text.endswith(
        "## Next, one at a time, each once the one before it passed\n\n"
        "- rlbox run holdem --profile full\n- rlbox run holdem --profile full --set max_tokens=8192\n"
        "- rlbox run holdem --profile full --set max_tokens=8192 --set concurrency=160\n"
    )
    assert (f"cp -a PRODUCT {archive}/h-1\n" in text) == mounted
    assert ("Archive" in text) == mounted


@pytest.mark.parametrize("status", ["passed", "failed"])
def test_a_run_that_passed_leaves_the_page(tmp_path: Path, status: str) -> None:
    run_store = RunStore(data_dir=tmp_path, open_runtime=open_container_runtime)
    plan, state = passed(tmp_path / "runs/h-1")
    run_dir = run_store.create_run_dir(plan, None, {})
    code = 0 if status == "passed" else 1
    write_run_state(run_dir, dataclasses.replace(state, state=status, exit_code=code), SecretMasker({}))
    app = App(project=PROJECT)
    assert reconcile_print_and_write_status_page(app, run_store, run_dir, plan, LockOwner(what="a test")) == code
    assert (run_dir / "STATUS.md").is_file() == (status == "passed")
