"""`rlbox report`: a run as one HTML file."""

from __future__ import annotations

import os
from pathlib import Path

import click

from rlbox.app import App
from rlbox.cli.offered import complete_run
from rlbox.cli.options import disk_options, dry_run, open_option, shared, write_page
from rlbox.errors import SpecError
from rlbox.run.data_disk import bring_up_to_date, known_disk, run_masks

POINTS = 400


@click.command()
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.argument("other", metavar="[OTHER]", required=False, shell_complete=complete_run)
@click.option("--out", metavar="FILE", help="File to write, - for standard output [RUN.html here].")
@open_option
@disk_options
@dry_run
@shared
def verb(
    app: App, name: str | None, other: str | None, out: str | None, opened: str, target: str, data: str | None
) -> int:
    """Write what RUN did as one HTML file that needs nothing else: the latest run by default, or a run's folder.

    With OTHER, the differences are shown as well, and the metrics of both in one chart.

    \b
    Examples:
      rlbox report
      rlbox report smoke-20260101 --out smoke.html --lang zh
      rlbox report smoke-20260102 smoke-20260101
    """
    from rlbox.machine.act.clock import utc_now
    from rlbox.report.act.html import render_report
    from rlbox.report.act.read import load_run_record

    folder = _run_folder(app, name, target, data)
    record = load_run_record(folder, run_masks(app, folder), points=POINTS)
    before = _run_folder(app, other, target, data) if other else None
    if before and os.path.realpath(before) == os.path.realpath(folder):
        raise SpecError(
            f"both names are of run {folder.name}, which does not differ from itself",
            where=f"{name} {other}",
            next_step="name another run as OTHER: rlbox runs",
        )
    beside = load_run_record(before, run_masks(app, before), points=POINTS) if before else None
    html = render_report(record, made_at=utc_now(), language=app.language, other=beside)
    told = {"run": record.state.run_id, "state": record.state.state}
    return write_page(app, html, out, f"{folder.name}.html", told, opened, record.gaps)


def _run_folder(app: App, name: str | None, target: str, data: str | None) -> Path:
    if name and (os.sep in name or name in (".", "..")) and Path(name).is_dir():
        return Path(name).resolve()
    ledger = known_disk(app, target, data)
    folder = ledger.find(name)
    bring_up_to_date(app, ledger)
    return folder
