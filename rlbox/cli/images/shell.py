"""`rlbox shell`: the image with its mounts, environment and limits."""

from __future__ import annotations

import click

from rlbox.app import App
from rlbox.cli.offered import complete_target
from rlbox.cli.options import dry_run, gpus_option, shared, stack_option


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.argument("command", metavar="[-- COMMAND]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--data", metavar="DIR", help="Host directory to mount as the data disk [RLBOX_DATA].")
@gpus_option
@stack_option
@dry_run
@shared
def verb(app: App, name: str, command: tuple[str, ...], data: str | None, gpus: str, force: bool) -> int:
    """Open a shell in the image of TARGET, or run COMMAND in it; its exit code is rlbox's.

    \b
    Examples:
      rlbox shell local
      rlbox shell local -- python -c 'import torch; print(torch.__version__)'
    """
    from rlbox.planner.stack_check import require_stack
    from rlbox.run.shell import open_shell

    require_stack(app, name, force=force)
    return open_shell(app, name, command, data, gpus)
