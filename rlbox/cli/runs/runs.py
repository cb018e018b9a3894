"""`rlbox runs`: what ran, what runs, and how it ended."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from rlbox.amounts import columns
from rlbox.app import App
from rlbox.cli.help import CommandGroup
from rlbox.cli.options import disk_options, shared
from rlbox.cli.runs.runs_diff import diff
from rlbox.cli.runs.runs_rm import prune, remove
from rlbox.cli.runs.runs_row import run_row
from rlbox.cli.runs.runs_show import show
from rlbox.run.data_disk import bring_up_to_date, known_disk

_COLUMNS = ("run", "state", "stage", "phase", "time", "cause")


@click.group(cls=CommandGroup, invoke_without_command=True)
@disk_options
@shared
@click.pass_context
def verb(ctx: click.Context, app: App, target: str, data: str | None) -> None:
    """List the runs on the data disk, the latest first; show one, compare two, remove those that are not needed.

    \b
    Examples:
      rlbox runs
      rlbox runs show smoke-20250101
      rlbox runs prune --dry-run
    """
    if ctx.invoked_subcommand:
        if any(ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE for name in ctx.params):
            raise click.UsageError(f"options go after {ctx.invoked_subcommand}, which has its own.")
        return
    _list(app, target, data)


@click.command("ls")
@disk_options
@shared
def ls(app: App, target: str, data: str | None) -> None:
    """List the runs on the data disk, the latest first, as `rlbox runs` does."""
    _list(app, target, data)


def _list(app: App, target: str, data: str | None) -> None:
    ledger = known_disk(app, target, data)
    found = bring_up_to_date(app, ledger)
    rows = [run_row(ledger, run, found) for run in ledger.runs()]
    app.result({"runs": rows}, _table(rows) if rows else "no run yet")


for command in (ls, show, diff, remove, prune):
    verb.add_command(command)


def _table(rows: list[dict[str, Any]]) -> str:
    shown = ({**row, "run": row["run"], "stage": row["stage"]} for row in rows)
    return "\n".join(columns([_COLUMNS, *([row[name] for name in _COLUMNS] for row in shown)]))
