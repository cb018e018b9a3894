"""`rlbox fetch`: bring every file of a target's lock into the store."""

from __future__ import annotations

import click

from rlbox.app import App
from rlbox.cli.offered import complete_target
from rlbox.cli.options import dry_run, place_option, shared, sources_option


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.option("--export", "export_to", metavar="PLACE", help="Then write the files to ./DIR or HOST/NAME:TAG.")
@click.option("--import", "import_from", metavar="PLACE", help="Take the files from an export; no other network.")
@click.option("--jobs", type=click.IntRange(1, 64), default=8, show_default=True, help="Files to fetch in parallel.")
@click.option("--store", "store", metavar="DIR", help="The store's folder [RLBOX_STORE].")
@place_option
@sources_option
@dry_run
@shared
def verb(
    app: App,
    name: str,
    export_to: str | None,
    import_from: str | None,
    jobs: int,
    store: str | None,
    place: str,
    sources: str,
) -> int:
    """Fetch every file in the lock of TARGET and verify it; files already in the store are not fetched again.

    With --place here it is what `rlbox apply` takes, and no more: no file of the operating system and no base
    image.

    \b
    Examples:
      rlbox fetch local
      rlbox fetch local --dry-run
      rlbox fetch local --export ./inputs
      rlbox fetch local --import ./inputs
      rlbox fetch local --place here --export ./kit
    """
    from rlbox.image.fetch_inputs import FetchWish, fetch_target

    if export_to and import_from:
        raise click.UsageError("--export and --import exclude each other.")
    wish = FetchWish(
        here=place == "here",
        sources=sources,
        store=store,
        jobs=jobs,
        export_to=export_to,
        import_from=import_from,
    )
    return fetch_target(app, name, wish)
