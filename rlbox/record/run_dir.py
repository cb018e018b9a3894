"""The run directory on the data disk: complete before anything starts, with its plan and what was asked for."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlbox.amounts import utc_now
from rlbox.errors import SpecError
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.job.plan import RunPlan, load_run_plan
from rlbox.record.disk_lock import LockOwner
from rlbox.record.journal import reserve_space
from rlbox.system.safe_files import copy_tree, make_directory, read_bytes, replace_file

PLAN_FILE = "plan.json"

OVERRIDES_FILE = "overrides.json"


def new_run_id(job: str) -> str:
    """Return a name for a new run: job, UTC time, and four letters against collisions."""
    return f"{job}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def write_run_dir(folder: Path, plan: RunPlan, programs: Path | None, extra: Mapping[str, str]) -> None:
    """Write a run directory, in a folder that is there.

    It holds `plan.json`, a copy of the job's own programs in `job/<folder>/`, and the `extra` files (name to text), so
    that what ran can be read later whatever has changed since.

    Raises
    ------
    OSError
        The disk is full or gone.
    """
    for path in (folder, folder / "stages"):
        make_directory(path)
    reserve_space(folder)
    if programs is not None:
        make_directory(folder / "job")
        copy_tree(programs, folder / "job" / programs.name, ("__pycache__", ".*"))
    for name, text in extra.items():
        make_directory((folder / name).parent)
        replace_file(folder / name, text.encode())
    write_plan(folder, plan)


def write_plan(folder: Path, plan: RunPlan) -> None:
    """Write `plan.json`, whole or not at all."""
    replace_file(folder / PLAN_FILE, json.dumps(plan.as_json(), indent=1).encode())


def load_plan(folder: Path) -> RunPlan:
    """Return the plan of a run directory.

    Raises
    ------
    SpecError
        There is none, or it is torn or of another rlbox.
    """
    path = folder / PLAN_FILE
    try:
        data = parse_json(read_bytes(path))
    except FileNotFoundError as error:
        raise SpecError(
            _("there is no {plan_file} to carry out").format(plan_file=PLAN_FILE), where=str(path)
        ) from error
    except (OSError, ValueError) as error:
        raise SpecError(
            _("{plan_file} cannot be read: {error}").format(plan_file=PLAN_FILE, error=error), where=str(path)
        ) from error
    return load_run_plan(data)


def lock_owner(plan: RunPlan) -> LockOwner:
    """Return who holds the data disk while the run of `plan` goes on."""
    return LockOwner(
        run=plan.run_id,
        job=plan.job,
        what=f"run {plan.run_id}",
        user=plan.user,
        uid=plan.uid,
        host=plan.host,
        since=utc_now(),
    )


def append_override(entry: Mapping[str, Any], known: str = "") -> str:
    """Return the text of `overrides.json` with `entry` behind the entries of the text `known`, a torn one left out."""
    try:
        data = parse_json(known)
        entries = list(data["entries"])
    except (ValueError, KeyError, TypeError):
        entries = []
    entries.append({"t": utc_now(), **entry})
    return json.dumps({"schema": 1, "entries": entries}, indent=1, ensure_ascii=False) + "\n"


def record_override(run_dir: Path, entry: Mapping[str, Any]) -> None:
    """Add `entry` (from `plan.overrides.override_entry`) to the run's file, which is always whole.

    Raises
    ------
    OSError
        The disk is full or gone.
    """
    path = run_dir / OVERRIDES_FILE
    known = b""
    with contextlib.suppress(FileNotFoundError):
        known = read_bytes(path)
    replace_file(path, append_override(entry, known.decode("utf-8", "replace")).encode("utf-8", "replace"))
