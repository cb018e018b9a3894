"""The run directory on the data disk: complete before anything starts, with its plan and what was asked for."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlbox.amounts import utc_now
from rlbox.errors import SpecError
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.job.plan import RunPlan, parse_run_plan
from rlbox.record.disk_lock import LockOwner
from rlbox.record.journal import reserve_disk_space_for_record
from rlbox.system.safe_files import ensure_dir_without_parents, read_bytes, replace_file

PLAN_FILE = "plan.json"

OVERRIDES_FILE = "overrides.json"


def create_run_id(job: str) -> str:
    return f"{job}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def write_run_files(
    run_dir: Path, plan: RunPlan, job_programs_dir: Path | None, extra_files: Mapping[str, str]
) -> None:
    """Keep what ran, so that it can be read whatever has changed since. Raises `OSError`."""
    for path in (run_dir, run_dir / "stages"):
        ensure_dir_without_parents(path)
    reserve_disk_space_for_record(run_dir)
    if job_programs_dir is not None:
        ensure_dir_without_parents(run_dir / "job")
        ignored = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(
            job_programs_dir, run_dir / "job" / job_programs_dir.name, ignore=ignored, copy_function=shutil.copy
        )
    for name, text in extra_files.items():
        ensure_dir_without_parents((run_dir / name).parent)
        replace_file(run_dir / name, text.encode())
    write_run_plan(run_dir, plan)


def write_run_plan(run_dir: Path, plan: RunPlan) -> None:
    replace_file(run_dir / PLAN_FILE, json.dumps(plan.as_json(), indent=1).encode())


def load_plan_file(run_dir: Path) -> RunPlan:
    """`SpecError` when there is none, or it is torn or of another rlbox."""
    path = run_dir / PLAN_FILE
    try:
        data = parse_untrusted_json(read_bytes(path))
    except FileNotFoundError as error:
        raise SpecError(
            _("there is no {plan_file} to carry out").format(plan_file=PLAN_FILE), where=str(path)
        ) from error
    except (OSError, ValueError) as error:
        raise SpecError(
            _("{plan_file} cannot be read: {error}").format(plan_file=PLAN_FILE, error=error),
            where=str(path),
            next_step=_("start the job again with `rlbox run`: a damaged run cannot be resumed"),
        ) from error
    return parse_run_plan(data)


def create_lock_owner_from_plan(plan: RunPlan) -> LockOwner:
    return LockOwner(
        run=plan.run_id,
        job=plan.job,
        what=f"run {plan.run_id}",
        user=plan.user,
        uid=plan.uid,
        host=plan.host,
        since=utc_now(),
    )


def add_entry_to_overrides_json(entry: Mapping[str, Any], overrides_json: str = "") -> str:
    try:
        data = parse_untrusted_json(overrides_json)
        entries = list(data["entries"])
    except (ValueError, KeyError, TypeError):
        entries = []
    entries.append({"t": utc_now(), **entry})
    return json.dumps({"schema": 1, "entries": entries}, indent=1, ensure_ascii=False) + "\n"


def append_to_overrides_file(run_dir: Path, entry: Mapping[str, Any]) -> None:
    """Add `entry` (from `build_undated_overrides_entry`) to the run's file, which is always whole; raises `OSError`."""
    path, earlier = run_dir / OVERRIDES_FILE, b""
    with contextlib.suppress(FileNotFoundError):
        earlier = read_bytes(path)
    text = add_entry_to_overrides_json(entry, earlier.decode("utf-8", "replace"))
    replace_file(path, text.encode("utf-8", "replace"))
