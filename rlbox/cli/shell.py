"""`rlbox shell`: the image with its mounts, environment and limits."""

from __future__ import annotations

import os
import sys

import click

from rlbox.cli.app import App
from rlbox.cli.options import complete_target, dry_run, shared
from rlbox.errors import EngineError

ENGINE_REFUSED = 125  # docker's own exit code for a container that never started


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.argument("command", metavar="[-- COMMAND]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--data", metavar="DIR", help="Host directory to mount as the data disk [RLBOX_DATA].")
@dry_run
@shared
def verb(app: App, name: str, command: tuple[str, ...], data: str | None) -> int:
    """Open a shell in the image of TARGET, or run COMMAND in it; its exit code is rlbox's.

    \b
    Examples:
      rlbox shell local
      rlbox shell local -- python -c 'import torch; print(torch.__version__)'
    """
    from rlbox.act.disk import check_disk, data_folder
    from rlbox.plan.container import OWNER_LABEL, TARGET_LABEL, client_words, plan_container

    image = app.image_plan(name)
    folder = data_folder(image.container, data)
    if not app.dry_run:
        check_disk(folder, 0, create=image.container.create)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    plan = plan_container(
        image.tag,
        image.container,
        name=f"rlbox-shell-{name}-{os.getpid()}",
        argv=command or ("bash",),
        env={},
        labels={TARGET_LABEL: name, OWNER_LABEL: str(os.getuid())},
        data=str(folder),
        caller=f"{os.getuid()}:{os.getgid()}",
    )
    words = ("docker", *client_words(plan, interactive=terminal or not sys.stdin.isatty(), terminal=terminal))
    if app.dry_run:
        import shlex

        app.result({"target": name, "command": words}, shlex.join(words))
        return 0
    return _run(words, name, image.tag)


def _run(words: tuple[str, ...], name: str, tag: str) -> int:
    """Run the docker client in the foreground and return the container's exit code."""
    import signal

    from rlbox.act.engine_api import engine_address, find_image

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the client passes it on; rlbox waits for the client
    try:
        environ = {**os.environ, "DOCKER_HOST": engine_address()}
        pid = os.posix_spawnp(words[0], words, environ, setsigdef=[signal.SIGINT])
    except FileNotFoundError as error:
        raise EngineError("no docker client on PATH", next_step="install Docker, or use `--place here`") from error
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == ENGINE_REFUSED and find_image(tag) is None:
        raise EngineError(f"the engine has no image {tag}", next_step=f"rlbox build {name}")
    return code if code >= 0 else 128 - code
