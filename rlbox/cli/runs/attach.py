"""`rlbox attach`: watch a run in progress, from any shell."""

from __future__ import annotations

import click

from rlbox.app import App
from rlbox.cli.offered import complete_run
from rlbox.cli.options import disk_options, shared
from rlbox.run.data_disk import bring_up_to_date, known_disk, myself


@click.command()
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
@disk_options
@shared
def verb(app: App, name: str | None, target: str, data: str | None) -> int:
    """Watch RUN (by default the latest) until it ends; Ctrl-C leaves it alone. The exit code is the run's.

    \b
    Examples:
      rlbox attach
      rlbox attach smoke-20260101
    """
    from rlbox.run.launch import finish, follow, stoppable

    ledger = known_disk(app, target, data)
    bring_up_to_date(app, ledger)
    run_dir = ledger.find(name)
    plan = ledger.plan(run_dir)
    with stoppable() as left:
        follow(app, run_dir, lambda: not left.name and ledger.goes_on(plan.run_id))
        if left.name and ledger.goes_on(plan.run_id):
            app.say(f"left alone: run {plan.run_id} goes on (rlbox stop {plan.run_id} ends it)")
            return 0
    return finish(app, ledger, run_dir, plan, myself("the end of a run"))
