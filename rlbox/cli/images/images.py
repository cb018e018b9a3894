"""`rlbox images`: the images that the engine keeps for rlbox, and those that can go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.asked import confirm
from rlbox.cli.help import CommandGroup
from rlbox.cli.options import dry_run, shared

if TYPE_CHECKING:
    from rlbox.image.image_use import KeptImage


@click.group(cls=CommandGroup, invoke_without_command=True)
@shared
@click.pass_context
def verb(ctx: click.Context, app: App) -> None:
    """List the images that rlbox built in this engine, whose they are and how they stand; remove those not needed.

    \b
    Examples:
      rlbox images
      rlbox images ls --json
      rlbox images prune --dry-run
    """
    if not ctx.invoked_subcommand:
        _list(app)


@click.command("ls")
@shared
def ls(app: App) -> None:
    """List the images that rlbox built in this engine, as `rlbox images` does."""
    _list(app)


@click.command("rm")
@click.argument("names", metavar="IMAGE...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@dry_run
@shared
def remove(app: App, names: tuple[str, ...], yes: bool) -> int:
    """Remove images by the names that `rlbox images` lists, or by their target for this project's own.

    One that a container was made from stays, and so does what other images share with it.

    \b
    Examples:
      rlbox images rm local --dry-run
      rlbox images rm rlbox/local:work-0a1b2c --yes
    """
    from rlbox.errors import EngineError
    from rlbox.image.prune import find_kept, kept_images

    rows = find_kept(app.project, kept_images(app.project), names)
    if held := [row for row in rows if row.containers]:
        raise EngineError(
            f"container {held[0].containers[0]} is made from {held[0].shown}",
            next_step=f"docker rm {held[0].containers[0]}, once nobody needs it",
        )
    return _carry_out(app, [(row, "") for row in rows], yes=yes)


@click.command("prune")
@click.option("--yes", is_flag=True, help="Do not ask.")
@dry_run
@shared
def prune(app: App, yes: bool) -> int:
    """Remove the images that nothing needs, and say what stays and why.

    Removed are images that a later build replaced, and those whose target or project folder is gone. Images of other
    users stay, and so do those that a container was made from.

    \b
    Examples:
      rlbox images prune --dry-run
      rlbox images prune --yes
    """
    from rlbox.image.image_use import image_fate
    from rlbox.image.prune import kept_images

    return _carry_out(app, [(row, image_fate(row)) for row in kept_images(app.project)], yes=yes)


def _list(app: App) -> None:
    from rlbox.image.image_use import image_lines
    from rlbox.image.prune import kept_images

    rows = kept_images(app.project)
    told = "\n".join(image_lines(rows)) if rows else "no image yet"
    app.result({"images": [asdict(row) for row in rows]}, told)


def _carry_out(app: App, rows: Sequence[tuple[KeptImage, str]], *, yes: bool) -> int:
    from rlbox.amounts import size_text
    from rlbox.image.image_use import fate_lines, freed_bytes
    from rlbox.image.prune import remove_images

    going = [row for row, stays in rows if not stays]
    freed = freed_bytes(going)
    found = {"images": [{"image": row.name, "bytes": row.size, "stays": stays} for row, stays in rows], "bytes": freed}
    if app.dry_run:
        text = "\n".join([*fate_lines(rows, done=False), f"would free up to {size_text(freed)}"])
        return app.planned(found, text, f"remove {len(going)} images" if going else "remove nothing")
    if going:
        for line in fate_lines(((row, "") for row in going), done=False):
            app.say(line)
        confirm(app, yes, f"remove {len(going)} images, up to {size_text(freed)}")
        remove_images(going)
    app.result(found | {"removed": True}, "\n".join([*fate_lines(rows, done=True), f"freed up to {size_text(freed)}"]))
    return 0


for command in (ls, remove, prune):
    verb.add_command(command)
