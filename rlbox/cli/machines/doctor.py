"""`rlbox doctor`: what is wrong with this machine, or container, before a run finds out."""

from __future__ import annotations

import click

from rlbox.app import App
from rlbox.cli.options import complete_target, gpus_option, shared


@click.command()
@click.argument("name", metavar="[TARGET]", required=False, shell_complete=complete_target)
@click.option("--fix", is_flag=True, help="Repair what is safe: links, folders, modes; says what it did.")
@click.option("--data", metavar="DIR", help="Host directory that is the data disk [RLBOX_DATA].")
@gpus_option
@click.option("--budget", type=float, default=0.0, hidden=True)
@shared
def verb(app: App, name: str | None, fix: bool, data: str | None, gpus: str, budget: float) -> int:
    """Examine this machine or container, and the image of TARGET; silent when nothing is wrong.

    Within ten seconds: limits, disks, paths, tokens, ports, mirrors, processes left over, every file of the stack, a
    calculation, one Ray task, the checks of all fixes. Errors give exit code 1, warnings 0.

    \b
    Examples:
      rlbox doctor local
      rlbox shell local -- rlbox doctor
      rlbox doctor --json
    """
    from rlbox.host.examine import examine

    return examine(app, name, fix=fix, data=data, gpus=gpus, budget_s=budget)
