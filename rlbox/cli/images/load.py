"""`rlbox load`: an image from an archive, proven before the engine sees it."""

from __future__ import annotations

from pathlib import Path

import click

from rlbox.app import App
from rlbox.cli.options import dry_run, shared


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@dry_run
@shared
def verb(app: App, file: Path) -> int:
    """Load the image that `rlbox save` wrote to FILE.

    Every byte is checked against its sha256 first: nothing is loaded from a damaged archive. With --dry-run the archive
    is verified, and the engine is asked whether it answers. The image gets the name that this project's target has;
    images of other projects stay as they are.

    \b
    Examples:
      rlbox load local.oci.tar
    """
    from rlbox.amounts import size_text
    from rlbox.engine.api import engine
    from rlbox.engine.archive_check import check_archive
    from rlbox.engine.archive_load import load_archive
    from rlbox.image.named import own_tag
    from rlbox.system.progress import show_byte_progress

    size = file.stat().st_size
    with show_byte_progress(app, "verifying", size) as on_bytes:
        archive = check_archive(file, on_bytes)
    tags = [own_tag(app.project, tag) for tag in archive.tags]
    if app.dry_run:
        data = {"file": str(file), "images": tags, "digests": [item.digest for item in archive.manifests]}
        with app.checking("engine"):
            engine()
        whole = "\n".join(f"{file} is whole: {tag}" for tag in tags)
        return app.planned(data, whole, f"load {', '.join(tags)}")
    with show_byte_progress(app, "loading", size) as on_bytes:
        loaded = load_archive(archive, lambda tag: own_tag(app.project, tag), on_bytes)
    data = {"file": str(file), "image": loaded.tag, "digest": loaded.digest, "id": loaded.identity}
    app.result(
        {**data, "layers": loaded.layers, "bytes": size},
        f"{loaded.tag}  {loaded.identity}  {loaded.layers} layers, {size_text(size)}",
    )
    app.say(f"next: docker run --rm {loaded.tag}")
    return 0
