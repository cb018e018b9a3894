"""`rlbox completion`: the script that makes a shell complete verbs, targets and jobs."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from rlbox.cli.app import App
from rlbox.cli.options import shared


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@shared
def verb(app: App, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    Examples:
      rlbox completion bash >> ~/.bashrc
    """
    from rlbox.cli.root import root

    completer = get_completion_class(shell)
    assert completer is not None
    script = completer(root, {}, "rlbox", "_RLBOX_COMPLETE").source()
    app.result({"shell": shell, "script": script}, script)
