"""`rlbox report`: a run as one HTML file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from rlbox.app import App
from rlbox.cli.offered import complete_run
from rlbox.cli.options import disk_options, dry_run, shared
from rlbox.errors import NodeError
from rlbox.run.data_disk import bring_up_to_date, known_disk, run_masks

POINTS = 400


@click.command()
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.option("--out", metavar="FILE", help="File to write, - for standard output [RUN.html here].")
@click.option(
    "--open", "opened", type=click.Choice(["auto", "yes", "no"]), default="auto", help="Show it in a browser."
)
@disk_options
@dry_run
@shared
def verb(app: App, name: str | None, out: str | None, opened: str, target: str, data: str | None) -> None:
    """Write what RUN did as one HTML file that needs nothing else: the latest run by default, or a run's folder.

    \b
    Examples:
      rlbox report
      rlbox report smoke-20260101 --out smoke.html --lang zh
    """
    from rlbox.machine.act.clock import utc_now
    from rlbox.report.act.html import render_report
    from rlbox.report.act.read import load_run_record

    folder = _run_folder(app, name, target, data)
    record = load_run_record(folder, run_masks(app, folder), points=POINTS)
    html = render_report(record, made_at=utc_now(), language=app.language)
    if out in ("-", "/dev/stdout"):
        sys.stdout.buffer.write(html.encode("utf-8", "replace"))
        return
    path = Path(out or f"{folder.name}.html")
    if not app.dry_run:
        _write(path, html)
    for gap in record.gaps:
        app.say(f"left out: {gap}")
    app.result({"run": record.state.run_id, "state": record.state.state, "report": os.path.abspath(path)}, str(path))
    if not app.dry_run and _shows(app, opened):
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


def _run_folder(app: App, name: str | None, target: str, data: str | None) -> Path:
    if name and (os.sep in name or name in (".", "..")) and Path(name).is_dir():
        return Path(name).resolve()
    ledger = known_disk(app, target, data)
    folder = ledger.find(name)
    bring_up_to_date(app, ledger)
    return folder


def _write(path: Path, html: str) -> None:
    from rlbox.files.act.folders import write_atomic

    try:
        write_atomic(path, html.encode("utf-8", "replace"))
    except OSError as error:
        raise NodeError(
            f"the report cannot be written: {error.strerror}", where=str(path), next_step="name another file with --out"
        ) from error


def _shows(app: App, opened: str) -> bool:
    """Whether to open a browser: when asked to, or when a person at a desktop waits for it."""
    if opened != "auto":
        return opened == "yes"
    desktop = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return app.interactive and sys.stdout.isatty() and desktop
