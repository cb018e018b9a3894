"""Read what a run directory says of one run: plan, state, specs, lock, last metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.errors import SpecError
from rlbox.job.names import METRICS_FILE
from rlbox.job.plan import RunPlan
from rlbox.record.act.folder import load_plan
from rlbox.record.act.state import RUN_FILE, RunState, load_run_state
from rlbox.spec.load import load_toml
from rlbox.target.lock import Lock, load_lock

_TAIL_BYTES = 1 << 20
_FRAMES = ("stage", "t", "time", "step", "rollout", "eval")
"""Keys of a record that say where and when, not how well."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run. `state` None: it never began. `specs` maps `job` and `target` to their parsed files; None: not there.

    `metrics` maps `STAGE.NAME` to the last value of each number in the run's `metrics.jsonl` files.
    """

    plan: RunPlan
    state: RunState | None
    specs: Mapping[str, Mapping[str, Any] | None]
    lock: Lock | None
    metrics: Mapping[str, float]


def load_run_record(run_dir: Path) -> RunRecord:
    """Return what is known of the run in `run_dir`.

    Raises
    ------
    SpecError
        Its plan or its state is torn, or of another rlbox; what else cannot be read counts as not there.
    """
    return RunRecord(
        plan=load_plan(run_dir),
        state=load_run_state(run_dir) if (run_dir / RUN_FILE).exists() else None,
        specs={name: _load_spec(run_dir / "spec" / f"{name}.toml") for name in ("job", "target")},
        lock=_load_lock(run_dir / "spec" / "lock.json"),
        metrics=_last_metrics(run_dir),
    )


def _load_spec(path: Path) -> Mapping[str, Any] | None:
    try:
        return load_toml(path)
    except SpecError:
        return None


def _load_lock(path: Path) -> Lock | None:
    try:
        return load_lock(path)
    except (SpecError, OSError):
        return None


def _last_metrics(run_dir: Path) -> dict[str, float]:
    """Return the last number of each name; of a very long file the end is read."""
    found: dict[str, float] = {}
    for path in sorted(run_dir.glob(f"**/{METRICS_FILE}")):
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().splitlines()[1 if size > _TAIL_BYTES else 0 :]
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:  # torn by a kill, or not ours
                continue
            if isinstance(record, dict):
                stage = str(record.get("stage", path.parent.name))
                found |= {
                    f"{stage}.{key}": float(value)
                    for key, value in record.items()
                    if key not in _FRAMES and isinstance(value, (int, float)) and not isinstance(value, bool)
                }
    return found
