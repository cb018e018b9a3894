"""`rlbox doctor`: what is wrong with this machine, or container, before a run finds out."""

from __future__ import annotations

import click

from rlbox.app import App
from rlbox.cli.offered import complete_target
from rlbox.cli.options import Amount, dry_run, gpus_option, place_option, shared


@click.command()
@click.argument("name", metavar="[TARGET]", required=False, shell_complete=complete_target)
@click.option(
    "--fix", is_flag=True, help="Repair what is safe to repair (links, folders, modes), and say what was done."
)
@click.option("--data", metavar="DIR", help="Host directory that is the data disk [RLBOX_DATA].")
@place_option
@gpus_option
@click.option("--budget", type=Amount(), default=0.0, hidden=True)
@click.option("--around", is_flag=True, hidden=True, help="What this process is in, as it is.")
@dry_run
@shared
def verb(
    app: App, name: str | None, fix: bool, data: str | None, place: str, gpus: str, budget: float, around: bool
) -> int:
    """Examine this machine or container, and the image of TARGET; prints nothing when nothing is wrong.

    Where `rlbox apply` laid a target, and with --place here, it is examined as its runs find it.

    Within ten seconds: limits, disks, paths, tokens, ports, mirrors, processes left over, every file of the stack, a
    calculation, one Ray task, the checks of all fixes. Errors give exit code 1, warnings 0.

    \b
    Examples:
      rlbox doctor local
      rlbox shell local -- rlbox doctor
      rlbox doctor --json
    """
    from rlbox.doctor.examine import examine
    from rlbox.run.examined import examine_place, place_to_examine

    if app.dry_run and not fix:
        raise click.UsageError("--dry-run goes with --fix: without it nothing is changed.")
    if not around and (layout := place_to_examine(app, name, place, data)):
        return examine_place(app, layout, gpus, fix=fix, budget_s=budget)
    return examine(app, name, fix=fix, data=data, gpus=gpus, budget_s=budget)
