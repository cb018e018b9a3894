"""What is known of the runs of a data disk: before some are removed, and how long stages took."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rlbox.amounts import moment
from rlbox.app import App
from rlbox.errors import RlboxError
from rlbox.evaluation.ckpt_files import find_checkpoints
from rlbox.planner.budget import StageMeasurement
from rlbox.record.folder import load_plan
from rlbox.record.ledger import Ledger, Settled
from rlbox.record.removal import KeptRun
from rlbox.record.removing import size_of
from rlbox.record.state import RunState
from rlbox.run.data_disk import bring_up_to_date, disk_here

_OF_NO_JOB = "?"


def run_facts(ledger: Ledger, app: App, folders: Iterable[Path]) -> list[KeptRun]:
    """Return what is known of some runs, after the dead ones were settled."""
    found = bring_up_to_date(app, ledger)
    return [_facts(ledger, folder, found) for folder in folders]


def _facts(ledger: Ledger, folder: Path, found: Settled) -> KeptRun:
    run, state = folder.name, _state(ledger, folder)
    holder = found.holder is not None and found.holder.run == run
    paths = [row.path for rows in find_checkpoints(folder).values() for row in rows]
    return KeptRun(
        run=run,
        job=state.job if state else _OF_NO_JOB,
        state=state.state if state else "",
        began=(moment(state.started_at) or 0.0) if state else 0.0,
        size=size_of(folder),
        held=holder or run in found.alive or run in found.unsettled or ledger.goes_on(run),
        checkpoints=tuple(sorted(str(Path(path).relative_to(folder)) for path in paths)),
    )


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
    state = _state(ledger, folder)
    if state is None or state.job != job or (target and state.target != target):
        return
    params = load_plan(folder).params
    for stage in state.stages:
        if stage.state == "passed" and stage.seconds:
            yield StageMeasurement(run=folder.name, stage=stage.name, seconds=stage.seconds, params=params)


def _state(ledger: Ledger, folder: Path) -> RunState | None:
    try:
        return ledger.state(folder, load_plan(folder))
    except RlboxError:
        return None  # a run of another rlbox, or one whose plan is torn
