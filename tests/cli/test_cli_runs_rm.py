"""`rlbox runs ls|show|rm|prune`, on a data disk with runs that ended."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from fakes import ON_IMAGE, Folder, Rlbox

from rlbox.job.job import load_job
from rlbox.job.params import resolve_params
from rlbox.job.plan import ProcessPaths, plan_run
from rlbox.record.run_dir import write_run_files
from rlbox.record.state import create_run_state, replace_stage, write_run_state
from rlbox.secrets.masks import SecretMasker
from rlbox.system.files import write_atomic

pytestmark = pytest.mark.allow("processes")

JOB = """
title = "learns"
target = "mine"
[[stages]]
name = "train"
title = "learns"
command = ["{python}", "train.py"]
"""


@pytest.fixture
def disk(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder.target("mine", ON_IMAGE)
    folder.job("two", JOB)
    data = folder.path / "disk"
    for number, (name, state) in enumerate({"two-1": "failed", "two-2": "passed", "two-3": "failed"}.items()):
        ended(folder, data, name, state, number)
    monkeypatch.setenv("RLBOX_DATA", str(data))
    return data


def ended(folder: Folder, data: Path, name: str, state: str, number: int) -> None:
    """Write a run as it lies there when it has ended."""
    run = data / "runs" / name
    job = load_job(folder.project, "two")
    paths = ProcessPaths(run=str(run), job=f"{run}/job", data=str(data), python="/opt/venv/bin/python")
    plan = plan_run(job, resolve_params(job, "", {}), paths, run_id=name, place="docker", target="mine")
    run.parent.mkdir(parents=True, exist_ok=True)
    write_run_files(run, plan, None, {})
    made = replace_stage(create_run_state(plan, 1), "train", state=state)
    when = f"2025-01-0{number + 1}T00:00:00+00:00"
    ended_run: Any = dataclasses.replace(made, started_at=when, ended_at=when, exit_code=0)
    write_run_state(run, dataclasses.replace(ended_run, state=state), SecretMasker({}))
    os.utime(run / "plan.json", (number, number))


def names(disk: Path) -> list[str]:
    return sorted(path.name for path in (disk / "runs").iterdir())


def test_show_says_what_a_run_is(rlbox: Rlbox, disk: Path) -> None:
    write_atomic(disk / "runs/two-2/train/checkpoint-5/model.safetensors", "x")
    said = rlbox("runs", "show", "two-2")
    assert said.code == 0
    assert said.out.splitlines()[0] == "two-2"
    assert "  stage train  passed" in said.out
    assert "checkpoint train/checkpoint-5" in said.out
    assert rlbox("runs", "show", "two-2", "--json").data["run"]["stages"] == [{"name": "train", "state": "passed"}]
    assert rlbox("runs", "show").out.startswith("two-3\n")


def test_rm_removes_what_is_named(rlbox: Rlbox, disk: Path) -> None:
    said = rlbox("runs", "rm", "two-1", "two-2", "--yes")
    assert said.code == 0
    assert "removed run two-1, " in said.out
    assert said.out.splitlines()[-1].startswith("freed ")
    assert names(disk) == ["two-3"]


def test_rm_wants_a_yes_where_nobody_can_be_asked(rlbox: Rlbox, disk: Path) -> None:
    said = rlbox("runs", "rm", "two-1")
    assert said.code == 2
    assert "--yes" in said.err
    assert names(disk) == ["two-1", "two-2", "two-3"]


def test_prune_keeps_the_latest_and_the_latest_that_passed(rlbox: Rlbox, disk: Path) -> None:
    said = rlbox("runs", "prune", "--yes")
    assert said.code == 0
    assert "run two-3 is kept, since it is the latest of job two\n" in said.out
    assert "run two-2 is kept, since it is the latest of job two that passed\n" in said.out
    assert names(disk) == ["two-2", "two-3"]
    assert rlbox("runs", "prune", "--yes").out.splitlines()[-1] == "freed 0 B"


def test_prune_leaves_what_is_young(rlbox: Rlbox, disk: Path) -> None:
    assert rlbox("runs", "prune", "--older", "30000d", "--yes").code == 0
    assert names(disk) == ["two-1", "two-2", "two-3"]
    assert rlbox("runs", "prune", "--older", "tomorrow").code == 2
