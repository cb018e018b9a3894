"""`rlbox compile`: compile the wheels of a target that no index has, once."""

from __future__ import annotations

import click

from rlbox.app import App
from rlbox.cli.offered import complete_target
from rlbox.cli.options import dry_run, shared, sources_option


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.argument("wheels", metavar="[NAME]...", nargs=-1)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    help="Compilers to run at once, at most; default: as many as memory and cores allow.",
)
@click.option("--verify", is_flag=True, help="Compile twice, the second time from nothing; name what differs.")
@click.option("--replace", is_flag=True, help="Replace the wheel that the lock has.")
@sources_option
@dry_run
@shared
def verb(
    app: App, name: str, wheels: tuple[str, ...], jobs: int | None, verify: bool, replace: bool, sources: str
) -> int:
    """Compile what `[[stack.compile]]` of TARGET names into wheels, keep them in the store, and lock them.

    A build sees its locked source, compiler and system at fixed paths, and no network. A killed build continues with
    the files it was working on.

    \b
    Examples:
      rlbox compile vast-5090-flash --dry-run
      rlbox compile vast-5090-flash flash-attn --verify --dry-run
    """
    from rlbox.image.compile import CompileWish, compile_target
    from rlbox.image.compile_view import compile_json, compile_text

    wish = CompileWish(names=wheels, jobs=jobs or 0, verify=verify, replace=replace, sources=sources)
    told = compile_target(app, name, wish)
    if app.dry_run:
        count = len([one for one in told if one.wheel is None])
        would = f"compile {count} of {len(told)} wheels" if count else "compile nothing: the store has all of it"
        app.say(f"next: rlbox compile {name}")
        return app.planned(compile_json(name, told), compile_text(told), would)
    app.result(compile_json(name, told), compile_text(told))
    app.say(f"next: rlbox build {name}")
    return 0
