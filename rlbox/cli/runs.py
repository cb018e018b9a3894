"""`rlbox runs`: list, show, compare and remove the runs of a data disk."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from rlbox.amounts import align_translated, decimal_size_text, duration_text, zoned_iso_to_unix
from rlbox.app import App
from rlbox.cli.help import DefaultLsGroup
from rlbox.cli.options import (
    complete_run,
    confirm_unless_yes,
    dry_run_option,
    pass_app_with_shared_options,
    run_argument,
    target_and_data_options,
    yes_option,
)
from rlbox.config.units import parse_to_base_unit
from rlbox.errors import LockHeld, RlboxError
from rlbox.i18n import _, ngettext, translate
from rlbox.record.run_dir import load_plan_file
from rlbox.record.run_store import (
    RemovalCandidate,
    RunsNotReconciled,
    RunStore,
    delete_run_dir_and_host_record,
    format_removed_and_kept_runs,
    mark_latest_recent_and_unfinished_runs_kept,
    mark_unfinished_runs_kept,
)
from rlbox.record.source_tree import describe_source_record, load_source_toml_or_empty
from rlbox.record.state import find_run_cause, load_run_state_or_none
from rlbox.report.metric_export import collect_export_series, load_exporter
from rlbox.report.read import load_run_record
from rlbox.report.run_diff import diff_runs, differences_to_json, differs_beyond_durations, format_differences
from rlbox.run.data_disk import (
    clean_up_dead_runs,
    create_own_lock_owner,
    load_environ_and_dotenv_masker_of_run,
    locate_run_store_or_run_remotely_and_exit,
)
from rlbox.run.history import clean_up_dead_runs_and_list_removal_candidates

_GOING = ("starting", "running")
_COLUMNS = {
    "run": _("run"),
    "state": _("state"),
    "stage": _("stage"),
    "phase": _("phase"),
    "time": _("time"),
    "cause": _("cause"),
}
_KEYS = {
    **_COLUMNS,
    "started_at": _("started_at"),
    "attempt": _("attempt"),
    "job": _("job"),
    "folder": _("folder"),
    "size": _("size"),
    "source": _("source"),
}
_TRANSLATED = ("state", "cause")
"""Keys of a run whose values are translated where they are printed."""


def make_run_state_summary_json(run_store: RunStore, run_dir: Path, reconciled: RunsNotReconciled) -> dict[str, Any]:
    """Return what `rlbox runs` says of one run; its `state` is never a guess."""
    row: dict[str, Any] = dict.fromkeys(("run", "state", "stage", "phase", "time", "cause", "started_at"), "")
    row |= {"run": run_dir.name, "attempt": 1, "exit_code": None, "notes": []}
    try:
        load_plan_file(run_dir)  # a torn plan raises
        state = run_store.load_state_marked_failed_if_tampered(run_dir)
    except RlboxError as error:
        return row | {"state": "unknown", "cause": error.what}
    alive = run_dir.name in reconciled.alive or (
        reconciled.lock_owner is not None and reconciled.lock_owner.run == run_dir.name
    )
    if state is None:
        return row | {"state": "starting" if alive else _("never started")}
    cause = find_run_cause(state)
    going = [stage for stage in state.stages if stage.state in (*_GOING, "failed", "interrupted")]
    stage = going[0] if going else None
    begun, ended = zoned_iso_to_unix(state.started_at), zoned_iso_to_unix(state.ended_at)
    return row | {
        "state": state.state if alive or state.state != "running" else "unknown",
        "stage": stage.name if stage else "",
        "phase": stage.phase if stage and stage.state in _GOING else "",
        "time": duration_text((ended or time.time()) - begun) if begun is not None else "",
        "cause": cause.what if cause else reconciled.unresolved.get(run_dir.name, ""),
        "started_at": state.started_at,
        "attempt": state.attempt,
        "exit_code": state.exit_code,
        "notes": list(state.notes),
    }


@click.command("show")
@run_argument
@target_and_data_options
@pass_app_with_shared_options
def clean_up_dead_runs_and_show_run(app: App, name: str | None, target: str, data: str | None) -> int:
    """Show RUN (by default the latest): its stages, its folder, its content.

    A unique prefix of its name is enough.

    \b
    Examples:
      rlbox runs show
    """
    run_store = locate_run_store_or_run_remotely_and_exit(app, target, data)
    run_dir = run_store.find_run_dir_or_latest(name)
    row = make_run_state_summary_json(run_store, run_dir, clean_up_dead_runs(app, run_store))
    facts = clean_up_dead_runs_and_list_removal_candidates(run_store, app, [run_dir])[0]
    state = load_run_state_or_none(run_dir) if row["state"] != "unknown" else None
    stages = [{"name": stage.name, "state": stage.state} for stage in state.stages] if state else []
    source = load_source_toml_or_empty(run_dir)
    more = {"job": facts.job, "folder": str(run_dir), "bytes": facts.size_bytes, "stages": stages, "source": source}
    pairs = [
        (key, _(value) if key in _TRANSLATED else str(value))
        for key, value in row.items()
        if value and key not in ("notes", "run", "exit_code")
    ]
    pairs += [("job", facts.job), ("folder", str(run_dir)), ("size", decimal_size_text(facts.size_bytes))]
    pairs += [("source", describe_source_record(source))] if source else []
    lines = [row["run"], *align_translated([(f"  {translate(_KEYS[key])}:", value) for key, value in pairs])]
    lines += [_("  note: {note}").format(note=_(note)) for note in row["notes"]]
    lines += align_translated([(_("  stage {stage}").format(stage=one["name"]), _(one["state"])) for one in stages])
    lines += [_("  checkpoint {path}").format(path=path) for path in facts.checkpoint_paths]
    text = "\n".join(map(translate, lines))
    app.output({"run": {**row, **more, "checkpoints": list(facts.checkpoint_paths)}}, text)
    return 0


@click.command("diff")
@click.argument("before", metavar="RUN", shell_complete=complete_run)
@click.argument("after", metavar="OTHER", shell_complete=complete_run)
@target_and_data_options
@pass_app_with_shared_options
def print_run_diff_and_return_1_if_different(app: App, before: str, after: str, target: str, data: str | None) -> int:
    """Show how two runs differ: parameters, lock, specs, commands, gates, metrics; exit code 1 when they do.

    A unique prefix of a run's name is enough. How long stages took is printed, but does not count as a difference.

    \b
    Examples:
      rlbox runs diff smoke-20250101-100000-abcd smoke-20250102-100000-ef01
    """
    run_store = locate_run_store_or_run_remotely_and_exit(app, target, data)
    run_dirs = run_store.find_run_dir_or_latest(before), run_store.find_run_dir_or_latest(after)
    records = [
        load_run_record(path, load_environ_and_dotenv_masker_of_run(app, path), max_points_per_series=0)
        for path in run_dirs
    ]
    names, difference = (run_dirs[0].name, run_dirs[1].name), diff_runs(*records)
    app.output({"diff": differences_to_json(names, difference)}, format_differences(names, difference))
    return 1 if differs_beyond_durations(difference) else 0


@click.command("export")
@run_argument
@click.option("--format", "exporter", metavar="NAME", required=True, help="tensorboard, mlflow, wandb or prometheus.")
@click.option("--to", "destination", metavar="DEST", required=True, help="Directory; mlflow: URI; prometheus: file.")
@target_and_data_options
@dry_run_option
@pass_app_with_shared_options
def export_run(app: App, name: str | None, exporter: str, destination: str, target: str, data: str | None) -> int:
    """Export metrics, stages, gates, phases and resources of RUN (by default the latest) to an experiment tracker.

    You can export a run in progress. Python packages add formats as entry points of the group rlbox.metric_exporters.

    \b
    Examples:
      rlbox runs export smoke-20250101-100000-abcd --format prometheus --to smoke.prom
    """
    run_dir = locate_run_store_or_run_remotely_and_exit(app, target, data).find_run_dir_or_latest(name)
    export = load_exporter(exporter)
    record = load_run_record(run_dir, load_environ_and_dotenv_masker_of_run(app, run_dir), max_points_per_series=0)
    series = collect_export_series(record, time.time())
    facts = {"run": record.state.run_id, "series": len(series), "points": sum(len(one.points) for one in series)}
    if app.dry_run:
        return app.print_dry_run(facts, "", _("export to {destination}").format(destination=destination))
    place = export(record, series, destination)
    app.output({**facts, "place": place}, place)
    return 0


@click.command("rm")
@click.argument("names", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run)
@yes_option
@target_and_data_options
@dry_run_option
@pass_app_with_shared_options
def remove_runs_or_refuse_if_one_unfinished(
    app: App, names: tuple[str, ...], yes: bool, target: str, data: str | None
) -> int:
    """Remove runs that have ended, with their logs, results and checkpoints.

    A unique prefix of a run's name is enough. A run that is in progress stays; `rlbox stop` ends it.

    \b
    Examples:
      rlbox runs rm smoke-20250101-100000-abcd
    """
    run_store = locate_run_store_or_run_remotely_and_exit(app, target, data)
    folders = list(dict.fromkeys(run_store.find_run_dir_or_latest(name) for name in names))
    rows = mark_unfinished_runs_kept(clean_up_dead_runs_and_list_removal_candidates(run_store, app, folders))
    if held := [row.run for row in rows if row.kept_because]:
        raise LockHeld(
            _("run {held} has not ended").format(held=held[0]),
            where=str(run_store.run_dir(held[0])),
            next_step=f"rlbox stop {held[0]}",
        )
    return _remove_runs(app, run_store, rows, yes=yes)


@click.command("prune")
@click.option("--older", metavar="TIME", help="Only runs that began so long ago, such as 7d or 12h.")
@click.option("--checkpoints", is_flag=True, help="Also remove runs that hold checkpoints.")
@yes_option
@target_and_data_options
@dry_run_option
@pass_app_with_shared_options
def remove_unneeded_runs_and_list_kept(
    app: App, older: str | None, checkpoints: bool, yes: bool, target: str, data: str | None
) -> int:
    """Remove the runs that nothing needs, and list the others with the reason.

    Kept: the latest run of each job, its latest passed run, runs in progress, and runs that hold checkpoints.

    \b
    Examples:
      rlbox runs prune --older 7d --yes
    """
    try:
        older_s = float(parse_to_base_unit("duration", older)) if older else 0.0
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--older'") from error
    run_store = locate_run_store_or_run_remotely_and_exit(app, target, data)
    rows = mark_latest_recent_and_unfinished_runs_kept(
        clean_up_dead_runs_and_list_removal_candidates(run_store, app, run_store.list_run_dirs_newest_first()),
        started_before_unix_s=time.time() - older_s,
        remove_runs_with_checkpoints=checkpoints,
    )
    return _remove_runs(app, run_store, rows, yes=yes)


def _remove_runs(app: App, run_store: RunStore, rows: Sequence[RemovalCandidate], *, yes: bool) -> int:
    going = [row for row in rows if not row.kept_because]
    freed = sum(row.size_bytes for row in going)
    size, count = decimal_size_text(freed), len(going)
    facts = [
        {"run": row.run, "bytes": row.size_bytes, "stays": row.kept_because, "checkpoints": list(row.checkpoint_paths)}
        for row in rows
    ]
    data = {"data": str(run_store.data_dir), "runs": facts, "bytes": freed}
    if app.dry_run:
        lines = [*format_removed_and_kept_runs(rows, done=False), _("would free {size}").format(size=size)]
        would = ngettext("remove {count} run", "remove {count} runs", count).format(count=count)
        return app.print_dry_run(data, "\n".join(map(translate, lines)), would)
    if going:
        for line in format_removed_and_kept_runs(going, done=False):
            app.print_status(line)
        lost = sum(len(row.checkpoint_paths) for row in going)
        question = ngettext("remove {count} run, {size}", "remove {count} runs, {size}", count)
        if lost:
            question = ngettext(
                "remove {count} run with {checkpoints}, {size}", "remove {count} runs with {checkpoints}, {size}", count
            )
        checkpoints = ngettext("{count} checkpoint", "{count} checkpoints", lost).format(count=lost)
        confirm_unless_yes(app, yes, question.format(count=count, checkpoints=checkpoints, size=size))
        lock = run_store.acquire_disk_lock(create_own_lock_owner("the removal of runs"))
        try:
            for row in going:
                delete_run_dir_and_host_record(run_store, row.run)
        finally:
            lock.close_own_handle()
    lines = [*format_removed_and_kept_runs(rows, done=True), _("freed {size}").format(size=size)]
    app.output(data | {"removed": True}, "\n".join(map(translate, lines)))
    return 0


@click.command("ls")
@target_and_data_options
@pass_app_with_shared_options
def clean_up_dead_runs_and_list_runs(app: App, target: str, data: str | None) -> None:
    """List the runs on the data disk, the latest first, as `rlbox runs` does."""
    run_store = locate_run_store_or_run_remotely_and_exit(app, target, data)
    reconciled = clean_up_dead_runs(app, run_store)
    rows = [make_run_state_summary_json(run_store, run, reconciled) for run in run_store.list_run_dirs_newest_first()]
    cells = [[_(row[key]) if key in _TRANSLATED else row[key] for key in _COLUMNS] for row in rows]
    table = align_translated([list(_COLUMNS.values()), *cells])
    app.output({"runs": rows}, "\n".join(table) if rows else _("no run yet"))


_EPILOG = "Each takes --target NAME, --data DIR, -v, --verbose, -q, --quiet, --json, --project DIR."


@click.group("runs", cls=DefaultLsGroup, epilog=_EPILOG)
def runs_command_group() -> None:
    """List the runs on the data disk, the latest first; show one, compare two, remove those that are not needed.

    \b
    Examples:
      rlbox runs
    """


for command in (
    clean_up_dead_runs_and_list_runs,
    clean_up_dead_runs_and_show_run,
    print_run_diff_and_return_1_if_different,
    export_run,
    remove_runs_or_refuse_if_one_unfinished,
    remove_unneeded_runs_and_list_kept,
):
    runs_command_group.add_command(command)
