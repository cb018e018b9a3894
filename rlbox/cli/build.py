"""`rlbox build`: make the image, unless it is proven to be what the specs say."""

from __future__ import annotations

import click

from rlbox.cli.app import App
from rlbox.cli.options import complete_target, dry_run, shared


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.option("--no-cache", is_flag=True, help="Run every step again.")
@click.option("--rebuild", is_flag=True, help="Ask the engine even when nothing changed.")
@dry_run
@shared
def verb(app: App, name: str, no_cache: bool, rebuild: bool) -> None:
    """Build the image of TARGET.

    Nothing is done when the image's label proves that specs, lock, context and base are what they were.

    \b
    Examples:
      rlbox build local
      rlbox build local --no-cache
    """
    from rlbox.cli.build_image import build_target

    build_target(app, name, no_cache=no_cache, rebuild=rebuild)
