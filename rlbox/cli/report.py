"""`rlbox report` and `rlbox bundle`: a run as one file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.completers import complete_run
from rlbox.cli.options import (
    OpenMode,
    dry_run_option,
    open_auto_yes_no_option,
    pass_app_with_shared_options,
    target_and_data_options,
    write_page,
)
from rlbox.errors import RlboxError, SpecError
from rlbox.i18n import _
from rlbox.run.data_disk import load_run_masks, open_existing_store_or_exec_remotely, reconcile_runs

if TYPE_CHECKING:
    from rlbox.record.run_store import RunStore
    from rlbox.record.state import RunState


POINTS = 400


@click.command()
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.argument("other", metavar="[OTHER]", required=False, shell_complete=complete_run)
@click.option("--out", metavar="FILE", help="File to write, - for standard output [RUN.html here].")
@open_auto_yes_no_option
@target_and_data_options
@dry_run_option
@pass_app_with_shared_options
def report(
    app: App,
    name: str | None,
    other: str | None,
    out: str | None,
    opened: OpenMode,
    target: str,
    data: str | None,
) -> int:
    """Write what RUN did as one HTML file that needs nothing else: the latest run by default, or a run's folder.

    With OTHER, the differences are shown as well, and the metrics of both in one chart. What checkpoints answered to
    problems is on the page that `rlbox eval report` writes.

    \b
    Examples:
      rlbox report
      rlbox report smoke-20260101 --out smoke.html --lang zh
      rlbox report smoke-20260102 smoke-20260101
    """
    from rlbox.amounts import utc_now
    from rlbox.report.html import render_report
    from rlbox.report.read import load_run_record

    folder = _run_folder(app, name, target, data)
    record = load_run_record(folder, load_run_masks(app, folder), max_points_per_series=POINTS)
    before = _run_folder(app, other, target, data) if other else None
    if before and os.path.realpath(before) == os.path.realpath(folder):
        raise SpecError(
            _("both names are of run {folder}, which does not differ from itself").format(folder=folder.name),
            where=f"{name} {other}",
            next_step=_("name another run as OTHER: rlbox runs"),
        )
    beside = load_run_record(before, load_run_masks(app, before), max_points_per_series=POINTS) if before else None
    html = render_report(record, made_at=utc_now(), other=beside)
    facts = {"run": record.state.run_id, "state": record.state.state}
    return write_page(app, html, out, f"{folder.name}.html", facts, opened, record.gaps)


def _run_folder(app: App, name: str | None, target: str, data: str | None) -> Path:
    if name and (os.sep in name or name in (".", "..")) and Path(name).is_dir():
        return Path(name).resolve()
    run_store = open_existing_store_or_exec_remotely(app, target, data)
    folder = run_store.find_run(name)
    reconcile_runs(app, run_store)
    return folder


@click.command()
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), help="Archive to write [RUN.tar.gz here].")
@click.option("--full", is_flag=True, help="Include logs in full, not only their last 20 MB.")
@target_and_data_options
@dry_run_option
@pass_app_with_shared_options
def bundle(app: App, name: str | None, out: Path | None, full: bool, target: str, data: str | None) -> int:
    """Write an archive of RUN (the latest by default): logs, evidence, configuration, facts of the machine.

    A run may be bundled at any time, even while it is running. Models and checkpoints are left out; secrets are masked.

    \b
    Examples:
      rlbox bundle
      rlbox bundle smoke-20260101 --out /tmp/smoke.tar.gz --full
    """
    from rlbox.amounts import decimal_size_text
    from rlbox.supervise.bundle import build_summary_and_errors, require_bundle_path, select_files, write_bundle

    run_store = open_existing_store_or_exec_remotely(app, target, data)
    run_dir = run_store.find_run(name)
    try:
        reconcile_runs(app, run_store)
    except RlboxError as error:  # a disk that cannot be written is a reason for a bundle, not against it
        app.print_status(f"it is not yet known how the run ended: {error.what}")
    out = Path(os.path.abspath(out or f"{run_dir.name}.tar.gz"))
    with app.collecting_refusals_if_dry_run("file"):
        require_bundle_path(run_dir, out)
    selection, masks = select_files(run_dir, whole_logs=full), load_run_masks(app, run_dir)
    left_out = masks.mask_json([vars(left) for left in selection.left])  # names of files may hold secrets, too
    if app.dry_run:
        files = masks.mask_json(
            [{"name": taken.name, "bytes": taken.bytes, "keep": taken.keep_last_bytes} for taken in selection.taken]
        )
        rows = [f"{decimal_size_text(row['keep']):>10}  {row['name']}" for row in files]
        rows += [f"{'left out':>10}  {row['name']}: {row['why']}" for row in left_out]
        told = {"run": run_dir.name, "file": str(out), "files": files, "left_out": left_out}
        return app.planned(told, "\n".join(rows), f"write {out}")
    total = sum(taken.keep_last_bytes for taken in selection.taken)
    app.print_status(f"bundling {len(selection.taken)} files, {decimal_size_text(total)}; {len(left_out)} left out")
    texts = build_summary_and_errors(run_dir, _state(run_store, run_dir), selection)
    entries = write_bundle(run_dir, selection, texts, out, masks)
    size = out.stat().st_size
    told = {"run": run_dir.name, "file": str(out), "bytes": size, "files": [vars(entry) for entry in entries]}
    app.result({**told, "left_out": left_out}, str(out))
    app.print_status(f"{decimal_size_text(size)}; read {run_dir.name}/SUMMARY.md in it first")
    return 0


def _state(run_store: RunStore, run_dir: Path) -> RunState | None:
    from rlbox.record.run_dir import load_plan_file
    from rlbox.record.state import find_readable_run_state

    try:
        load_plan_file(run_dir)  # a torn plan raises
        return run_store.load_state_checked_with_host_record(run_dir)
    except RlboxError:  # the plan is torn; the state may be whole
        return find_readable_run_state(run_dir)
