"""`rlbox completion`: the script that makes a shell complete commands, targets and jobs."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from rlbox.app import App
from rlbox.cli.options import pass_app_with_shared_options

SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@click.argument("shell", type=click.Choice(tuple(SHELLS)))
@pass_app_with_shared_options
def completion(app: App, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    Examples:
      rlbox completion bash >> ~/.bashrc
    """
    from rlbox.cli.root import COMPLETION, root

    script = SHELLS[shell](root, {}, "rlbox", COMPLETION).source()
    app.result({"shell": shell, "script": script}, script)
