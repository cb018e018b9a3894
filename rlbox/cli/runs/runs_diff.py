"""`rlbox runs diff`: what two runs were told and what came out of them."""

from __future__ import annotations

import click

from rlbox.app import App
from rlbox.cli.offered import complete_run
from rlbox.cli.options import disk_options, shared
from rlbox.run.data_disk import known_disk


@click.command("diff")
@click.argument("before", metavar="RUN", shell_complete=complete_run)
@click.argument("after", metavar="OTHER", shell_complete=complete_run)
@disk_options
@shared
def diff(app: App, before: str, after: str, target: str, data: str | None) -> int:
    """Show how two runs differ: parameters, lock, specs, commands, gates, metrics; exit code 1 when they do.

    A unique prefix of a run's name is enough. How long stages took is printed, but does not count as a difference.

    \b
    Examples:
      rlbox runs diff smoke-20250101-100000-abcd smoke-20250102-100000-ef01
      rlbox runs diff smoke-20250101 smoke-20250102 --json
    """
    from rlbox.report.read import load_run_record
    from rlbox.report.run_diff import diff_json, diff_runs, diff_text, different
    from rlbox.run.data_disk import run_masks

    ledger = known_disk(app, target, data)
    folders = ledger.find(before), ledger.find(after)
    names = folders[0].name, folders[1].name
    records = [load_run_record(folder, run_masks(app, folder), points=0) for folder in folders]
    found = diff_runs(*records)
    app.result({"diff": diff_json(names, found)}, diff_text(names, found))
    return 1 if different(found) else 0
