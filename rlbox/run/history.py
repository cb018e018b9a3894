"""What is known of the runs of a data disk: before some are removed, and how long stages took."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rlbox.amounts import zoned_iso_to_unix
from rlbox.app import App
from rlbox.errors import RlboxError
from rlbox.evaluation.checkpoints import find_checkpoints_by_parent
from rlbox.planner.fit import StageMeasurement
from rlbox.record.run_dir import load_plan_file
from rlbox.record.run_store import RemovalCandidate, RunsNotReconciled, RunStore, sum_file_sizes
from rlbox.record.state import RunState
from rlbox.run.data_disk import clean_up_dead_runs, resolve_local_run_store

_OF_NO_JOB = "?"


def clean_up_dead_runs_and_list_removal_candidates(
    run_store: RunStore, app: App, run_dirs: Iterable[Path]
) -> list[RemovalCandidate]:
    found = clean_up_dead_runs(app, run_store)
    return [_facts(run_store, folder, found) for folder in run_dirs]


def _facts(run_store: RunStore, folder: Path, found: RunsNotReconciled) -> RemovalCandidate:
    run, state = folder.name, _state(run_store, folder)
    holder = found.lock_owner is not None and found.lock_owner.run == run
    paths = [row.path for rows in find_checkpoints_by_parent(folder).values() for row in rows]
    return RemovalCandidate(
        run=run,
        job=state.job if state else _OF_NO_JOB,
        state=state.state if state else "",
        started_unix_s=(zoned_iso_to_unix(state.started_at) or 0.0) if state else 0.0,
        size_bytes=sum_file_sizes(folder),
        may_be_running=holder or run in found.alive or run in found.unresolved or run_store.is_running_or_starting(run),
        checkpoint_paths=tuple(sorted(str(path.relative_to(folder)) for path in paths)),
    )


def load_passed_stage_measurements_or_empty(
    app: App, job: str, target: str, data_option: str | None
) -> tuple[StageMeasurement, ...]:
    try:
        run_store = resolve_local_run_store(app, target, data_option)
        return tuple(
            row for folder in run_store.list_run_dirs_newest_first() for row in _passed(run_store, folder, job, target)
        )
    except RlboxError:
        return ()


def _passed(run_store: RunStore, folder: Path, job: str, target: str) -> Iterator[StageMeasurement]:
    state = _state(run_store, folder)
    if state is None or (state.job, state.target) != (job, target):
        return
    plan = load_plan_file(folder)
    name_by_folder = {path: f"{{hub.{name}}}" for name, path in plan.hub.items()}
    params = {name: name_by_folder.get(str(value), value) for name, value in plan.params.items()}
    for stage in state.stages:
        if stage.state == "passed" and stage.seconds:
            yield StageMeasurement(run=folder.name, stage=stage.name, seconds=stage.seconds, params=params)


def _state(run_store: RunStore, folder: Path) -> RunState | None:
    try:
        load_plan_file(folder)  # a torn plan raises
        return run_store.load_state_marked_failed_if_tampered(folder)
    except RlboxError:
        return None  # a run of another rlbox, or one whose plan is torn
