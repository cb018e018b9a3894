"""`rlbox runs rm` and `rlbox runs prune`: runs that are not needed go from the data disk."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.asked import confirm
from rlbox.cli.offered import complete_run
from rlbox.cli.options import Age, disk_options, dry_run, shared
from rlbox.run.data_disk import known_disk

if TYPE_CHECKING:
    from rlbox.record.ledger import Ledger
    from rlbox.record.removal import RunRemoval

_WHAT = "the removal of runs"


@click.command("rm")
@click.argument("names", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run)
@click.option("--yes", is_flag=True, help="Do not ask.")
@disk_options
@dry_run
@shared
def remove(app: App, names: tuple[str, ...], yes: bool, target: str, data: str | None) -> int:
    """Remove runs that have ended, with their logs, results and checkpoints.

    A unique prefix of a run's name is enough. A run that is in progress stays; `rlbox stop` ends it.

    \b
    Examples:
      rlbox runs rm smoke-20250101-100000-abcd
      rlbox runs rm smoke-20250101 --dry-run
    """
    from rlbox.errors import LockHeld
    from rlbox.record.removal import named_removals
    from rlbox.run.known_runs import run_facts

    ledger = known_disk(app, target, data)
    folders = list(dict.fromkeys(ledger.find(name) for name in names))
    rows = named_removals(run_facts(ledger, app, folders))
    if held := [row.run for row in rows if row.stays]:
        raise LockHeld(
            f"run {held[0]} has not ended", where=str(ledger.run_dir(held[0])), next_step=f"rlbox stop {held[0]}"
        )
    return _carry_out(app, ledger, rows, yes=yes)


@click.command("prune")
@click.option(
    "--older", type=Age(), default="", metavar="TIME", help="Only runs that began so long ago, such as 7d or 12h."
)
@click.option("--checkpoints", is_flag=True, help="Runs that hold checkpoints, too.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@disk_options
@dry_run
@shared
def prune(app: App, older: float, checkpoints: bool, yes: bool, target: str, data: str | None) -> int:
    """Remove the runs that nothing needs, and say what stays and why.

    The latest run of each job stays, its latest that passed, what has not ended, and runs that hold checkpoints.

    \b
    Examples:
      rlbox runs prune --dry-run
      rlbox runs prune --older 7d --yes
    """
    from rlbox.record.removal import spare_removals
    from rlbox.run.known_runs import run_facts

    before = time.time() - older
    ledger = known_disk(app, target, data)
    rows = spare_removals(run_facts(ledger, app, ledger.runs()), before=before, checkpoints=checkpoints)
    return _carry_out(app, ledger, rows, yes=yes)


def _carry_out(app: App, ledger: Ledger, rows: Sequence[RunRemoval], *, yes: bool) -> int:
    from rlbox.amounts import counted, size_text
    from rlbox.record.removal import removal_lines
    from rlbox.record.removing import remove_run
    from rlbox.run.data_disk import myself

    going = [row for row in rows if not row.stays]
    freed = sum(row.size for row in going)
    facts = [{"run": row.run, "bytes": row.size, "stays": row.stays, "checkpoints": list(row.loses)} for row in rows]
    found = {"data": str(ledger.folder), "runs": facts, "bytes": freed}
    if app.dry_run:
        text = "\n".join([*removal_lines(rows, done=False), f"would free {size_text(freed)}"])
        return app.planned(found, text, f"remove {counted(len(going), 'run', 'runs')}")
    if going:
        lost = [path for row in going for path in row.loses]
        for line in removal_lines(going, done=False):
            app.say(line)
        what = counted(len(going), "run", "runs")
        lost_too = f"remove {what} with {counted(len(lost), 'checkpoint', 'checkpoints')}, {size_text(freed)}"
        confirm(app, yes, lost_too if lost else f"remove {what}, {size_text(freed)}")
        hold = ledger.take(myself(_WHAT))
        try:
            for row in going:
                remove_run(ledger, row.run)
        finally:
            hold.leave()
    app.result(found | {"removed": True}, "\n".join([*removal_lines(rows, done=True), f"freed {size_text(freed)}"]))
    return 0
