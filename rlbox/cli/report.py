"""`rlbox report`, `watch` and `bundle`: a run as a page, and as an archive."""

from __future__ import annotations

import os
from pathlib import Path

import click

from rlbox.amounts import count_columns, decimal_size_text, utc_now
from rlbox.app import App
from rlbox.cli.options import (
    dry_run_option,
    pass_app_with_shared_options,
    run_argument,
    target_and_data_options,
    write_html_file_or_stdout,
)
from rlbox.errors import MachineError, RlboxError
from rlbox.i18n import _, translate
from rlbox.report.html import render_report_html
from rlbox.report.live import LivePageServer
from rlbox.report.read import RunRecord, load_run_record
from rlbox.run.data_disk import (
    clean_up_dead_runs,
    load_environ_and_dotenv_masker_of_run,
    locate_run_store_or_run_remotely_and_exit,
)
from rlbox.supervise.bundle import (
    build_summary_and_errors_by_name,
    require_writable_path_outside_run,
    select_bundle_files,
    write_bundle,
)

MAX_CHART_POINTS = 400


@click.command("report")
@run_argument
@click.option("--out", metavar="FILE", help="File to write, - for standard output [RUN.html here].")
@target_and_data_options
@dry_run_option
@pass_app_with_shared_options
def write_run_report_html(app: App, name: str | None, out: str | None, target: str, data: str | None) -> int:
    """Write what RUN did as one HTML file that needs nothing else: the latest run by default, or a run's folder.

    `rlbox runs diff` compares two runs; `rlbox eval report` shows what checkpoints answered to problems.

    \b
    Examples:
      rlbox report
      rlbox report smoke-20260101 --out smoke.html --lang zh
    """
    run_dir = _find_run_dir(app, name, target, data)
    record = _load_record(app, run_dir)
    html = render_report_html(record, made_at=utc_now())
    facts = {"run": record.state.run_id, "state": record.state.state}
    return write_html_file_or_stdout(app, html, out, f"{run_dir.name}.html", facts, record.gaps)


def _load_record(app: App, run_dir: Path) -> RunRecord:
    return load_run_record(
        run_dir, load_environ_and_dotenv_masker_of_run(app, run_dir), max_points_per_series=MAX_CHART_POINTS
    )


def _find_run_dir(app: App, name: str | None, target: str, data: str | None) -> Path:
    if name and (os.sep in name or name in (".", "..")) and Path(name).is_dir():
        return Path(name).resolve()
    run_store = locate_run_store_or_run_remotely_and_exit(app, target, data)
    run_dir = run_store.find_run_dir_or_latest(name)
    clean_up_dead_runs(app, run_store)
    return run_dir


@click.command("watch")
@run_argument
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="PORT", help="Port on 127.0.0.1 [a free one]."
)
@target_and_data_options
@pass_app_with_shared_options
def serve_live_run_page_until_interrupted(app: App, name: str | None, port: int, target: str, data: str | None) -> int:
    """Show RUN (by default the latest) as a page that follows it, on this machine alone; Ctrl-C ends the page.

    It shows the same content as the report, updates while the run is in progress, and never changes the run.

    \b
    Examples:
      rlbox watch
      rlbox watch smoke-20260101 --port 8300
    """
    run_dir = locate_run_store_or_run_remotely_and_exit(app, target, data).find_run_dir_or_latest(name)

    def page() -> str:
        return render_report_html(_load_record(app, run_dir), made_at=utc_now(), live=True)

    try:
        server = LivePageServer(run_dir, page, port)
    except OSError as error:
        raise MachineError(
            _("cannot listen on the port: {strerror}").format(strerror=error.strerror),
            where=str(port),
            next_step=_("name another with --port"),
        ) from error
    port, address = server.port, f"http://127.0.0.1:{server.port}/"
    try:
        app.output({"run": run_dir.name, "address": address}, address)
        app.print_status(_("run {name} is shown there until Ctrl-C").format(name=run_dir.name))
        if os.environ.get("SSH_CONNECTION"):
            app.print_status(
                _("from your own machine: ssh -N -L {port}:127.0.0.1:{port} NAME, then the same address").format(
                    port=port
                )
            )
        server.serve_forever()
    except KeyboardInterrupt:
        app.print_status(_("stopped showing run {name}").format(name=run_dir.name))
    finally:
        server.server_close()
    return 0


@click.command("bundle")
@run_argument
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), help="Archive to write [RUN.tar.gz here].")
@click.option("--full", is_flag=True, help="Include logs in full, not only their last 20 MB.")
@target_and_data_options
@dry_run_option
@pass_app_with_shared_options
def write_run_bundle(app: App, name: str | None, out: Path | None, full: bool, target: str, data: str | None) -> int:
    """Write an archive of RUN (the latest by default): logs, evidence, configuration, facts of the machine.

    A run may be bundled at any time, even while it is running. Models and checkpoints are left out; secrets are masked.

    \b
    Examples:
      rlbox bundle
      rlbox bundle smoke-20260101 --out /tmp/smoke.tar.gz --full
    """
    run_store = locate_run_store_or_run_remotely_and_exit(app, target, data)
    run_dir = run_store.find_run_dir_or_latest(name)
    try:
        clean_up_dead_runs(app, run_store)
    except RlboxError as error:  # a disk that cannot be written is a reason for a bundle, not against it
        app.print_status(_("it is not yet known how the run ended: {what}").format(what=error.what))
    out = Path(os.path.abspath(out or f"{run_dir.name}.tar.gz"))
    with app.collecting_refusals_if_dry_run("file"):
        require_writable_path_outside_run(run_dir, out)
    selection, masks = (
        select_bundle_files(run_dir, whole_logs=full),
        load_environ_and_dotenv_masker_of_run(app, run_dir),
    )
    left_out = masks.mask_json([vars(left) for left in selection.skipped])  # names of files may hold secrets, too
    if app.dry_run:
        files = masks.mask_json(
            [{"name": taken.name, "bytes": taken.bytes, "keep": taken.keep_last_bytes} for taken in selection.taken]
        )
        rows = [f"{decimal_size_text(row['keep']):>10}  {row['name']}" for row in files]
        skipped = " " * (10 - count_columns(translate(_("left out")))) + translate(_("left out"))
        rows += [f"{skipped}  {row['name']}: {translate(_(row['why']))}" for row in left_out]
        told = {"run": run_dir.name, "file": str(out), "files": files, "left_out": left_out}
        return app.print_dry_run(told, "\n".join(rows), _("write {file}").format(file=out))
    total = sum(taken.keep_last_bytes for taken in selection.taken)
    app.print_status(
        _("bundling {count} files, {size}; {left_out} left out").format(
            count=len(selection.taken), size=decimal_size_text(total), left_out=len(left_out)
        )
    )
    texts = build_summary_and_errors_by_name(
        run_dir, run_store.load_state_marked_failed_if_tampered(run_dir), selection
    )
    entries = write_bundle(run_dir, selection, texts, out, masks)
    size = out.stat().st_size
    told = {"run": run_dir.name, "file": str(out), "bytes": size, "files": [vars(entry) for entry in entries]}
    app.output({**told, "left_out": left_out}, str(out))
    app.print_status(
        _("{size}; read {name}/SUMMARY.md in it first").format(size=decimal_size_text(size), name=run_dir.name)
    )
    return 0
