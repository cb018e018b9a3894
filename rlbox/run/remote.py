"""A verb about runs whose engine, and so whose data disk, is on another machine: it goes on over there."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

import click

from rlbox.app import App
from rlbox.errors import EngineError, SpecError
from rlbox.image.act.plans import image_plan

_HERE = ("--project", "--data", "--env-file")
"""Options whose values are names of files here; what they say is sent along otherwise."""


def go_over(app: App, target: str, data: str | None, env: Mapping[str, str] | None = None) -> None:
    """Return when the engine is on this machine; else carry the whole command line out beside it, and exit.

    Parameters
    ----------
    env
        Variables that the command gets there: a job's secrets.
    """
    from rlbox.engine.act.address import engine_is_here, engine_place

    if engine_is_here():
        return
    if not engine_place().startswith("ssh://"):
        raise EngineError(
            "runs need an engine on this machine, or one that is reached over ssh",
            where=engine_place(),
            next_step="DOCKER_HOST=ssh://USER@HOST",
        )
    words = click.get_current_context().find_root().obj
    raise click.exceptions.Exit(on_remote(app, target, data, words, env or {}))


def on_remote(app: App, target: str, data: str | None, words: Sequence[str], env: Mapping[str, str]) -> int:
    """Run `rlbox WORDS` in a container of the target's image beside the remote engine; return its exit code."""
    from rlbox.engine.act.address import engine_place
    from rlbox.engine.act.api import find_image
    from rlbox.engine.act.helper_container import Helper, run_helper
    from rlbox.engine.act.ssh_tunnel import open_tunnel

    tunnel = open_tunnel(engine_place())
    image = image_plan(app.project, target)
    if find_image(image.tag) is None:
        raise EngineError(f"the engine has no image {image.tag}", next_step=f"rlbox build {target}")
    folder = data or os.environ.get("RLBOX_DATA") or image.container.host
    folder = f"{tunnel.home}{folder[1:]}" if folder.startswith("~") else folder
    if not folder.startswith("/"):
        raise SpecError(
            "on a remote engine the data disk is named by its whole path there",
            where=folder or "disk.host",
            next_step="--data /PATH/ON/THE/REMOTE/HOST",
        )
    helper = Helper(
        image=image.tag,
        data=folder,
        create=image.container.create,
        words=without(words, _HERE),
        env={"RLBOX_DATA": folder, **env},
        terminal=sys.stdin.isatty() and sys.stdout.isatty(),
    )
    return run_helper(tunnel, app.project, helper)


def without(words: Sequence[str], options: Sequence[str]) -> tuple[str, ...]:
    """Return a command line without some options and their values."""
    left, rest = [], iter(words)
    for word in rest:
        if word in options:
            next(rest, None)
        elif not any(word.startswith(f"{option}=") for option in options):
            left.append(word)
    return tuple(left)
