"""`overrides.json` of a run directory: what was asked for beyond the job file, entry by entry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlbox.files.act.folders import write_atomic
from rlbox.machine.act.clock import utc_now

OVERRIDES_FILE = "overrides.json"


def overrides_text(entry: Mapping[str, Any], known: str = "") -> str:
    """Return the text of `overrides.json` with `entry` behind the entries of the text `known`, a torn one left out."""
    try:
        data = json.loads(known)
        entries = list(data["entries"])
    except (ValueError, KeyError, TypeError):
        entries = []
    entries.append({"t": utc_now(), **entry})
    return json.dumps({"schema": 1, "entries": entries}, indent=1, ensure_ascii=False) + "\n"


def record_overrides(run_dir: Path, entry: Mapping[str, Any]) -> None:
    """Add `entry` (from `plan.overrides.override_entry`) to the run's file, which is always whole.

    Raises
    ------
    OSError
        The disk is full or gone.
    """
    path = run_dir / OVERRIDES_FILE
    write_atomic(path, overrides_text(entry, path.read_text("utf-8") if path.exists() else ""))
