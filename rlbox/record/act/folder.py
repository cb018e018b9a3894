"""The run directory on the data disk: made whole before anything starts."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from pathlib import Path

from rlbox.errors import RlboxError, SpecError
from rlbox.files.act.folders import write_atomic
from rlbox.job.plan import RunPlan, load_run_plan
from rlbox.machine.act.clock import utc_now
from rlbox.record.act.disk_lock import Holder
from rlbox.record.act.journal import reserve_space
from rlbox.record.act.state import load_run_state

RUNS = "runs"
PLAN_FILE = "plan.json"
OWN = ".rlbox"
"""Folder of a data disk with what rlbox keeps there for itself."""

_NEW = "new"
"""Run directories are made below `OWN`, and renamed when they are whole."""


def new_run_id(job: str) -> str:
    """Return a name for a new run: job, UTC time, and four letters against collisions."""
    return f"{job}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def make_run_folder(data: Path, plan: RunPlan, programs: Path | None, extra: dict[str, str]) -> Path:
    """Write the run directory of `plan` and return it.

    It holds `plan.json`, a copy of the job's own programs in `job/<folder>/`, and the `extra` files (name to text), so
    that what ran can be read later whatever has changed since. It is there whole or not at all.

    Raises
    ------
    OSError
        The disk is full or gone; what was written of it is removed.
    """
    whole = data / RUNS / plan.run_id
    folder = data / OWN / _NEW / plan.run_id
    try:
        _fill(folder, plan, programs, extra)
        whole.parent.mkdir(exist_ok=True)
        folder.rename(whole)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return whole


def _fill(folder: Path, plan: RunPlan, programs: Path | None, extra: dict[str, str]) -> None:
    (folder / "stages").mkdir(parents=True)
    reserve_space(folder)
    if programs is not None:
        shutil.copytree(programs, folder / "job" / programs.name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name, text in extra.items():
        write_atomic(folder / name, text)
    write_plan(folder, plan)


def forget_unfinished(data: Path) -> None:
    """Remove run directories that were never finished: whoever made them is gone."""
    shutil.rmtree(data / OWN / _NEW, ignore_errors=True)


def write_plan(folder: Path, plan: RunPlan) -> None:
    """Write `plan.json`, whole or not at all."""
    write_atomic(folder / PLAN_FILE, json.dumps(plan.as_json(), indent=1))


def load_plan(folder: Path) -> RunPlan:
    """Return the plan of a run directory.

    Raises
    ------
    SpecError
        There is none, or it is torn or of another rlbox.
    """
    path = folder / PLAN_FILE
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise SpecError(f"there is no {PLAN_FILE} to carry out", where=str(path)) from error
    except (OSError, ValueError) as error:
        raise SpecError(f"{PLAN_FILE} cannot be read: {error}", where=str(path)) from error
    return load_run_plan(data)


def list_runs(data: Path) -> list[Path]:
    """Return the run directories on a data disk, the latest first."""
    folder = data / RUNS
    found = [entry for entry in folder.iterdir() if (entry / PLAN_FILE).is_file()] if folder.is_dir() else []
    return sorted(found, key=lambda entry: os.stat(entry / PLAN_FILE).st_mtime, reverse=True)


def find_run(data: Path, name: str | None) -> Path:
    """Return the run directory named `name` (a unique beginning will do), or the latest.

    Raises
    ------
    SpecError
        There is no such run, or the beginning fits more than one.
    """
    runs = list_runs(data)
    found = [run for run in runs if run.name == name] or [run for run in runs if name and run.name.startswith(name)]
    if name is None and runs:
        return runs[0]
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} runs begin with {name!r}" if found else f"no run {name!r}" if name else "no run yet"
    raise SpecError(what, where=str(data / RUNS), next_step="rlbox runs")


def holder_of(plan: RunPlan) -> Holder:
    """Return who holds the data disk while the run of `plan` goes on."""
    return Holder(
        run=plan.run_id,
        job=plan.job,
        what=f"run {plan.run_id}",
        user=plan.user,
        uid=plan.uid,
        host=plan.host,
        since=utc_now(),
    )


def stage_of(data: Path, run: str) -> str:
    """Return the stage that a run is at now, in a word; empty when that cannot be told."""
    try:
        state = load_run_state(data / RUNS / run)
    except RlboxError:
        return ""
    return next((stage.name for stage in state.stages if stage.state in ("starting", "running")), "")
