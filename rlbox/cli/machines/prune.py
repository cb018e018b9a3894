"""`rlbox prune`: free what nothing needs any more, and say what would free more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.asked import confirm
from rlbox.cli.options import dry_run, shared

if TYPE_CHECKING:
    from rlbox.image.image_use import KeptImage


UNUSED_S = 30 * 86_400.0
"""A cache entry is removed after so many seconds without use."""


@click.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@dry_run
@shared
def verb(app: App, yes: bool) -> int:
    """Remove images that nothing needs, fetched files that no lock uses, and caches not used for 30 days.

    It includes what `rlbox images prune` and `rlbox store prune` do. Runs and checkpoints stay: see `rlbox runs prune`.

    \b
    Examples:
      rlbox prune --dry-run
      rlbox prune --yes
    """
    from rlbox.amounts import size_text
    from rlbox.artifacts.care import prune
    from rlbox.artifacts.names import wanted_digests
    from rlbox.artifacts.objects import Store, store_folder
    from rlbox.artifacts.old_caches import find_unused_entries, remove_entries
    from rlbox.image.image_use import fate_lines, freed_bytes
    from rlbox.image.prune import remove_images

    images, store = _spare_images(app), Store(store_folder(""))
    wanted = wanted_digests(store, app.project)
    spare = prune(store, wanted, dry_run=True)
    caches = find_unused_entries(UNUSED_S)
    cached = sum(row.size for row in caches)
    files, freed = len(spare.objects) + len(spare.partials), freed_bytes(images) + spare.freed + cached
    lines = fate_lines(((row, "") for row in images), done=False)
    lines += [f"would remove {files} files of {store.root}, {size_text(spare.freed)}"] if files else []
    lines += [f"would remove {len(caches)} caches not used for 30 days, {size_text(cached)}"] if caches else []
    found = {"images": [row.name for row in images], "files": files, "caches": len(caches), "bytes": freed}
    if app.dry_run:
        text = "\n".join([*lines, f"would free up to {size_text(freed)}"])
        return app.planned(found, text, f"free up to {size_text(freed)}" if lines else "remove nothing")
    if lines:
        for line in lines:
            app.say(line)
        confirm(
            app, yes, f"remove {len(images)} images, {files} files and {len(caches)} caches, up to {size_text(freed)}"
        )
        remove_entries(caches)  # which alone may refuse
        remove_images(images)
        prune(store, wanted, dry_run=False)
    app.result(found | {"removed": True}, f"freed up to {size_text(freed)}")
    return 0


def _spare_images(app: App) -> list[KeptImage]:
    """Return the images that can go; none, with a word, where no engine answers."""
    from rlbox.errors import EngineError
    from rlbox.image.image_use import image_fate
    from rlbox.image.prune import kept_images

    try:
        return [row for row in kept_images(app.project) if not image_fate(row)]
    except EngineError as error:
        app.say(f"images: not looked at: {error.what}")
        return []
