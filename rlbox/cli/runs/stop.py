"""`rlbox stop`: stop a run in progress, from any shell."""

from __future__ import annotations

from typing import Any

import click

from rlbox.amounts import limit_text
from rlbox.app import App
from rlbox.cli.offered import complete_run
from rlbox.cli.options import disk_options, dry_run, shared
from rlbox.run.data_disk import bring_up_to_date, known_disk


@click.command()
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.option("--grace", default=20, metavar="SECONDS", show_default=True, help="Until it is killed.")
@disk_options
@dry_run
@shared
def verb(app: App, name: str | None, grace: int, target: str, data: str | None) -> int:
    """Stop RUN (by default the one in progress): its stages end in order, then whatever is left is killed.

    Stopping a run that has ended changes nothing and is no error.

    \b
    Examples:
      rlbox stop
      rlbox stop smoke-20260101 --grace 60
    """
    from rlbox.cli.runs.runs_row import run_row
    from rlbox.run.stop import stop_run
    from rlbox.system.identity import user_name

    ledger = known_disk(app, target, data)
    found = bring_up_to_date(app, ledger)
    going = [*found.alive, *([found.holder.run] if found.holder and found.holder.run else [])]
    if name is None and not going:
        none: dict[str, Any] = {"run": "", "state": "", "stopped": False, "data": str(ledger.folder)}
        if app.dry_run:
            return app.planned(none, f"no run is in progress on {ledger.folder}", "stop nothing")
        app.result(none, f"no run is in progress on {ledger.folder}")
        return 0
    run_dir = ledger.find(going[0] if name is None else name)
    if run_dir.name not in going:
        row = run_row(ledger, run_dir, found)
        ended = {"run": row["run"], "state": row["state"], "stopped": False}
        app.say(f"run {row['run']} has already ended: there is nothing to stop")
        if app.dry_run:
            return app.planned(ended, f"{row['run']} {row['state']}", "stop nothing")
        app.result(ended, f"{row['run']} {row['state']}")
        return 0
    if app.dry_run:
        told = {"run": run_dir.name, "state": "running", "stopped": False, "grace_s": grace}
        would = f"ask run {run_dir.name} to stop, and kill what is left of it after {limit_text(grace)}"
        return app.planned(told, "", would)
    app.say(f"stopping run {run_dir.name}")
    stop_run(ledger, run_dir, ledger.plan(run_dir), user=user_name(), by="rlbox stop", grace_s=grace)
    row = run_row(ledger, run_dir, bring_up_to_date(app, ledger))
    app.result({"run": row["run"], "state": row["state"], "stopped": True}, f"{row['run']} {row['state']}")
    return 0
