"""`rlbox runs`: list, show, compare and remove the runs of a data disk."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from rlbox.amounts import columns, decimal_size_text, duration_text, moment
from rlbox.app import App
from rlbox.cli.completers import complete_run
from rlbox.cli.confirmation import require_confirmation
from rlbox.cli.help import TranslatedGroup
from rlbox.cli.options import (
    DurationWithUnitToSeconds,
    dry_run_option,
    pass_app_with_shared_options,
    target_and_data_options,
)
from rlbox.i18n import _
from rlbox.run.data_disk import open_existing_store_or_exec_remotely, reconcile_runs

if TYPE_CHECKING:
    from rlbox.record.run_store import ReconcileResult, RemovalCandidate, RunStore
    from rlbox.record.state import RunState, StageState


_GOING = ("starting", "running")


def run_state_summary_json(run_store: RunStore, run_dir: Path, reconciled: ReconcileResult) -> dict[str, Any]:
    """Return what `rlbox runs` says of one run; its `state` is never a guess."""
    from rlbox.errors import RlboxError
    from rlbox.record.run_dir import load_plan_file
    from rlbox.record.state import find_run_cause

    row: dict[str, Any] = dict.fromkeys(("run", "state", "stage", "phase", "time", "cause", "started_at"), "")
    row |= {"run": run_dir.name, "attempt": 1, "exit_code": None, "notes": []}
    try:
        load_plan_file(run_dir)  # a torn plan raises
        state = run_store.load_state_checked_with_host_record(run_dir)
    except RlboxError as error:
        return row | {"state": "unknown", "cause": error.what}
    alive = run_dir.name in reconciled.alive or (
        reconciled.lock_owner is not None and reconciled.lock_owner.run == run_dir.name
    )
    if state is None:
        return row | {"state": "starting" if alive else "never started"}
    cause, stage = find_run_cause(state), _stage(state)
    shown = state.state if alive or state.state != "running" else "unknown"
    return row | {
        "state": shown,
        "stage": stage.name if stage else "",
        "phase": stage.phase if stage and stage.state in _GOING else "",
        "time": _took(state),
        "cause": cause.what if cause else reconciled.unresolved.get(run_dir.name, ""),
        "started_at": state.started_at,
        "attempt": state.attempt,
        "exit_code": state.exit_code,
        "notes": list(state.notes),
    }


def _stage(state: RunState) -> StageState | None:
    """Return the stage that goes on, or the one that the run ended in."""
    going = [stage for stage in state.stages if stage.state in (*_GOING, "failed", "interrupted")]
    return going[0] if going else None


def _took(state: RunState) -> str:
    begun, ended = moment(state.started_at), moment(state.ended_at)
    return duration_text((ended or time.time()) - begun) if begun is not None else ""


@click.command("show")
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
@target_and_data_options
@pass_app_with_shared_options
def show(app: App, name: str | None, target: str, data: str | None) -> int:
    """Show RUN (by default the latest): its stages, its folder, its content.

    A unique prefix of its name is enough.

    \b
    Examples:
      rlbox runs show
      rlbox runs show smoke-20250101 --json
    """
    from rlbox.record.source_tree import describe_source, load_source_toml
    from rlbox.run.history import reconcile_and_list_candidates

    run_store = open_existing_store_or_exec_remotely(app, target, data)
    folder = run_store.find_run(name)
    row = run_state_summary_json(run_store, folder, reconcile_runs(app, run_store))
    facts = reconcile_and_list_candidates(run_store, app, [folder])[0]
    stages = _stages(run_store, folder)
    source = load_source_toml(folder)
    found = {
        **row,
        "job": facts.job,
        "folder": str(folder),
        "bytes": facts.size_bytes,
        "stages": stages,
        "source": source,
    }
    told = [(key, str(value)) for key, value in row.items() if value and key not in ("notes", "run", "exit_code")]
    told += [("job", facts.job), ("folder", str(folder)), ("size", decimal_size_text(facts.size_bytes))]
    told += [("source", describe_source(source))] if source else []
    lines = [row["run"], *columns([(f"  {key}:", value) for key, value in told])]
    lines += [f"  note: {note}" for note in row["notes"]]
    lines += columns([(f"  stage {one['name']}", one["state"]) for one in stages])
    lines += [f"  checkpoint {path}" for path in facts.checkpoint_paths]
    app.result({"run": found | {"checkpoints": list(facts.checkpoint_paths)}}, "\n".join(lines))
    return 0


def _stages(run_store: Any, folder: Any) -> list[dict[str, str]]:
    from rlbox.errors import RlboxError
    from rlbox.record.run_dir import load_plan_file

    try:
        load_plan_file(folder)  # a torn plan raises
        state = run_store.load_state_checked_with_host_record(folder)
    except RlboxError:
        return []
    return [{"name": stage.name, "state": stage.state} for stage in state.stages] if state else []


@click.command("diff")
@click.argument("before", metavar="RUN", shell_complete=complete_run)
@click.argument("after", metavar="OTHER", shell_complete=complete_run)
@target_and_data_options
@pass_app_with_shared_options
def diff(app: App, before: str, after: str, target: str, data: str | None) -> int:
    """Show how two runs differ: parameters, lock, specs, commands, gates, metrics; exit code 1 when they do.

    A unique prefix of a run's name is enough. How long stages took is printed, but does not count as a difference.

    \b
    Examples:
      rlbox runs diff smoke-20250101-100000-abcd smoke-20250102-100000-ef01
      rlbox runs diff smoke-20250101 smoke-20250102 --json
    """
    from rlbox.report.read import load_run_record
    from rlbox.report.run_diff import diff_json, diff_runs, diff_text, differs_beyond_durations
    from rlbox.run.data_disk import load_run_masks

    run_store = open_existing_store_or_exec_remotely(app, target, data)
    folders = run_store.find_run(before), run_store.find_run(after)
    names = folders[0].name, folders[1].name
    records = [load_run_record(folder, load_run_masks(app, folder), max_points_per_series=0) for folder in folders]
    found = diff_runs(*records)
    app.result({"diff": diff_json(names, found)}, diff_text(names, found))
    return 1 if differs_beyond_durations(found) else 0


_WHAT = "the removal of runs"


@click.command("rm")
@click.argument("names", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run)
@click.option("--yes", is_flag=True, help="Do not ask.")
@target_and_data_options
@dry_run_option
@pass_app_with_shared_options
def remove(app: App, names: tuple[str, ...], yes: bool, target: str, data: str | None) -> int:
    """Remove runs that have ended, with their logs, results and checkpoints.

    A unique prefix of a run's name is enough. A run that is in progress stays; `rlbox stop` ends it.

    \b
    Examples:
      rlbox runs rm smoke-20250101-100000-abcd
      rlbox runs rm smoke-20250101 --dry-run
    """
    from rlbox.errors import LockHeld
    from rlbox.record.run_store import decide_named_removals
    from rlbox.run.history import reconcile_and_list_candidates

    run_store = open_existing_store_or_exec_remotely(app, target, data)
    folders = list(dict.fromkeys(run_store.find_run(name) for name in names))
    rows = decide_named_removals(reconcile_and_list_candidates(run_store, app, folders))
    if held := [row.run for row in rows if row.kept_because]:
        raise LockHeld(
            _("run {held} has not ended").format(held=held[0]),
            where=str(run_store.run_dir(held[0])),
            next_step=f"rlbox stop {held[0]}",
        )
    return _carry_out(app, run_store, rows, yes=yes)


@click.command("prune")
@click.option(
    "--older",
    type=DurationWithUnitToSeconds(),
    default="",
    metavar="TIME",
    help="Only runs that began so long ago, such as 7d or 12h.",
)
@click.option("--checkpoints", is_flag=True, help="Also remove runs that hold checkpoints.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@target_and_data_options
@dry_run_option
@pass_app_with_shared_options
def prune(app: App, older: float, checkpoints: bool, yes: bool, target: str, data: str | None) -> int:
    """Remove the runs that nothing needs, and say what stays and why.

    Kept: the latest run of each job, its latest passed run, runs in progress, and runs that hold checkpoints.

    \b
    Examples:
      rlbox runs prune --dry-run
      rlbox runs prune --older 7d --yes
    """
    from rlbox.record.run_store import decide_removals_keeping_latest_runs
    from rlbox.run.history import reconcile_and_list_candidates

    before = time.time() - older
    run_store = open_existing_store_or_exec_remotely(app, target, data)
    rows = decide_removals_keeping_latest_runs(
        reconcile_and_list_candidates(run_store, app, run_store.list_run_dirs_newest_first()),
        started_before_s=before,
        remove_runs_with_checkpoints=checkpoints,
    )
    return _carry_out(app, run_store, rows, yes=yes)


def _carry_out(app: App, run_store: RunStore, rows: Sequence[RemovalCandidate], *, yes: bool) -> int:
    from rlbox.amounts import counted, decimal_size_text
    from rlbox.record.run_store import delete_run_dir_and_host_record, format_removals
    from rlbox.run.data_disk import create_lock_owner

    going = [row for row in rows if not row.kept_because]
    freed = sum(row.size_bytes for row in going)
    facts = [
        {
            "run": row.run,
            "bytes": row.size_bytes,
            "stays": row.kept_because,
            "checkpoints": list(row.checkpoint_paths),
        }
        for row in rows
    ]
    found = {"data": str(run_store.data_dir), "runs": facts, "bytes": freed}
    if app.dry_run:
        text = "\n".join([*format_removals(rows, done=False), f"would free {decimal_size_text(freed)}"])
        return app.planned(found, text, f"remove {counted(len(going), 'run', 'runs')}")
    if going:
        lost = [path for row in going for path in row.checkpoint_paths]
        for line in format_removals(going, done=False):
            app.print_status(line)
        what = counted(len(going), "run", "runs")
        lost_too = f"remove {what} with {counted(len(lost), 'checkpoint', 'checkpoints')}, {decimal_size_text(freed)}"
        require_confirmation(app, yes, lost_too if lost else f"remove {what}, {decimal_size_text(freed)}")
        hold = run_store.acquire_disk_lock(create_lock_owner(_WHAT))
        try:
            for row in going:
                delete_run_dir_and_host_record(run_store, row.run)
        finally:
            hold.close_own_handle()
    app.result(
        found | {"removed": True}, "\n".join([*format_removals(rows, done=True), f"freed {decimal_size_text(freed)}"])
    )
    return 0


_COLUMNS = ("run", "state", "stage", "phase", "time", "cause")


@click.group(cls=TranslatedGroup, invoke_without_command=True)
@target_and_data_options
@pass_app_with_shared_options
@click.pass_context
def runs(ctx: click.Context, app: App, target: str, data: str | None) -> None:
    """List the runs on the data disk, the latest first; show one, compare two, remove those that are not needed.

    \b
    Examples:
      rlbox runs
      rlbox runs show smoke-20250101
      rlbox runs prune --dry-run
    """
    if ctx.invoked_subcommand:
        if any(ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE for name in ctx.params):
            raise click.UsageError(
                _("options go after {invoked_subcommand}, which has its own.").format(
                    invoked_subcommand=ctx.invoked_subcommand
                )
            )
        return
    _list(app, target, data)


@click.command("ls")
@target_and_data_options
@pass_app_with_shared_options
def ls(app: App, target: str, data: str | None) -> None:
    """List the runs on the data disk, the latest first, as `rlbox runs` does."""
    _list(app, target, data)


def _list(app: App, target: str, data: str | None) -> None:
    run_store = open_existing_store_or_exec_remotely(app, target, data)
    found = reconcile_runs(app, run_store)
    rows = [run_state_summary_json(run_store, run, found) for run in run_store.list_run_dirs_newest_first()]
    app.result({"runs": rows}, _table(rows) if rows else "no run yet")


for command in (ls, show, diff, remove, prune):
    runs.add_command(command)


def _table(rows: list[dict[str, Any]]) -> str:
    return "\n".join(columns([_COLUMNS, *([row[name] for name in _COLUMNS] for row in rows)]))
