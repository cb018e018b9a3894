"""`rlbox build`: make the image, unless it is proven to be what the specs say."""

from __future__ import annotations

import click

from rlbox.app import App
from rlbox.cli.offered import complete_target
from rlbox.cli.options import dry_run, shared, sources_option, stack_option


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.option("--no-cache", is_flag=True, help="Run every step again, ignoring the build cache.")
@click.option("--rebuild", is_flag=True, help="Ask the engine even when nothing changed.")
@click.option("--hermetic", is_flag=True, help="Build from the store, with no network in any step.")
@click.option("--verify", is_flag=True, help="Build twice without cache and compare; name what differs.")
@stack_option
@sources_option
@dry_run
@shared
def verb(
    app: App, name: str, no_cache: bool, rebuild: bool, hermetic: bool, verify: bool, force: bool, sources: str
) -> int:
    """Build the image of TARGET.

    Nothing is built when the image's label proves that specs, lock, context and base are unchanged.

    \b
    Examples:
      rlbox build local
      rlbox build local --hermetic
      rlbox build local --verify
    """
    from rlbox.doctor.gpu_choice import least_driver
    from rlbox.image.build import build_target
    from rlbox.image.buildkit import BuildWish
    from rlbox.planner.stack_check import require_stack

    if app.dry_run and (driver := least_driver(app, name)):
        app.say(f"driver: {driver} or newer on the machine that runs it")
    forced = require_stack(app, name, force=force)
    wish = BuildWish(
        no_cache=no_cache, rebuild=rebuild, hermetic=hermetic, verify=verify, sources=sources, forced=forced
    )
    return build_target(app, name, wish)
