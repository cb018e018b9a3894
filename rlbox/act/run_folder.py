"""The run directory on the data disk: made whole before anything starts."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from pathlib import Path

from rlbox.act.folders import write_atomic
from rlbox.errors import SpecError
from rlbox.plan.run import RunPlan

RUNS = "runs"


def new_run_id(job: str) -> str:
    """Return a name for a new run: job, UTC time, and four letters against collisions."""
    return f"{job}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def make_run_folder(data: Path, plan: RunPlan, programs: Path | None, extra: dict[str, str]) -> Path:
    """Write the run directory of `plan` and return it.

    It holds `plan.json`, a copy of the job's own programs in `job/<folder>/`, and the `extra` files (name to text), so
    that what ran can be read later whatever has changed since.
    """
    folder = data / RUNS / plan.run_id
    (folder / "stages").mkdir(parents=True)
    if programs is not None:
        shutil.copytree(programs, folder / "job" / programs.name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name, text in extra.items():
        write_atomic(folder / name, text)
    write_atomic(folder / "plan.json", json.dumps(plan.as_json(), indent=1))
    return folder


def list_runs(data: Path) -> list[Path]:
    """Return the run directories on a data disk, the latest first."""
    folder = data / RUNS
    found = [entry for entry in folder.iterdir() if (entry / "plan.json").is_file()] if folder.is_dir() else []
    return sorted(found, key=lambda entry: os.stat(entry / "plan.json").st_mtime, reverse=True)


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
