"""`rlbox save`: an image as one file, for a machine without a registry."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from rlbox.app import App
from rlbox.cli.offered import complete_target
from rlbox.cli.options import dry_run, shared
from rlbox.image.names import NO_PROJECT, image_tag
from rlbox.image.plans import image_plan


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@dry_run
@shared
def verb(app: App, name: str, file: Path) -> int:
    """Write the image of TARGET to FILE, an OCI archive that `rlbox load` reads on an engine of any age.

    An existing FILE is replaced only once the new one is complete. The image is `rlbox/TARGET:latest` in it,
    of no project.

    \b
    Examples:
      rlbox save local local.oci.tar
    """
    from rlbox.amounts import size_text
    from rlbox.engine.archive_save import save_image
    from rlbox.image.adopt import own_image
    from rlbox.system.files import require_writable_file
    from rlbox.system.progress import show_byte_progress

    plan = image_plan(app.project, name)
    tag = plan.tag
    file = Path(os.path.abspath(file))
    with app.checking("file"):
        require_writable_file(file, "another path for FILE")
    image: dict[str, Any] = {}
    with app.checking("image"):
        image = own_image(app, plan)
    if app.dry_run:
        return app.planned({"target": name, "image": tag, "file": str(file)}, f"write {tag} to {file}", f"save {tag}")
    with show_byte_progress(app, f"saving {tag}", int(image.get("Size") or 0)) as on_bytes:
        saved = save_image(image, tag, image_tag(name, NO_PROJECT), file, on_bytes)
    data = {"target": name, "image": tag, "file": str(file), "digest": saved.digest, "bytes": saved.size}
    app.result(data, f"{file}  {saved.digest}  {size_text(saved.size)}")
    app.say(f"next: rlbox load {file.name} (on the other machine)")
    return 0
