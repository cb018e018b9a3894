"""How long the stages of a job took in the runs of a data disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rlbox.app import App
from rlbox.errors import RlboxError
from rlbox.planner.budget import StageMeasurement
from rlbox.record.act.folder import load_plan
from rlbox.record.act.ledger import Ledger
from rlbox.run.data_disk import disk_here


def measured_stages(app: App, job: str, target: str, data: str | None) -> tuple[StageMeasurement, ...]:
    """Return the stages of `job` that passed on `target`, the latest run first; nothing where no disk is there."""
    try:
        ledger = disk_here(app, target, data)
        return tuple(row for folder in ledger.runs() for row in _passed(ledger, folder, job, target))
    except RlboxError:
        return ()


def stages_of_run(app: App, job: str, run: str, target: str, data: str | None) -> tuple[StageMeasurement, ...]:
    """Return the stages of one run of `job` that passed, on whatever target; `SpecError` when there is no such run."""
    ledger = disk_here(app, target, data)
    return tuple(_passed(ledger, ledger.find(run), job, ""))


def _passed(ledger: Ledger, folder: Path, job: str, target: str) -> Iterator[StageMeasurement]:
    try:
        plan = load_plan(folder)
        state = ledger.state(folder, plan)
    except RlboxError:
        return  # a run of another rlbox, or one whose plan is torn
    if state is None or plan.job != job or (target and plan.target != target):
        return
    for stage in state.stages:
        if stage.state == "passed" and stage.seconds:
            yield StageMeasurement(run=folder.name, stage=stage.name, seconds=stage.seconds, params=plan.params)
