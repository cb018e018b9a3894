"""`rlbox warm`: a model's files into the page cache, at the disk's speed, and proof that they are there."""

from __future__ import annotations

from pathlib import Path

import click

from rlbox.cli.app import App
from rlbox.cli.options import dry_run, shared


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@dry_run
@shared
def verb(app: App, paths: tuple[Path, ...]) -> int:
    """Read files, or all files of folders, into memory, so that the next load comes from there and not from the disk.

    What is there already is not read again. Afterwards the kernel is asked what is there: less than all gives exit
    code 1. Files that are larger than the memory are refused, since reading them would only drive others out.

    \b
    Examples:
      rlbox warm /data/models/Qwen3-8B
      rlbox warm /data/models/Qwen3-8B --dry-run
    """
    from rlbox.act.page_cache import room_bytes
    from rlbox.act.warm import find_files, look_at, warm_files
    from rlbox.errors import WorkFailed
    from rlbox.plan.warm import Warmed, check_room, resident_of
    from rlbox.report.warm_view import warm_view, warmed_text

    files = look_at(find_files(paths))
    found = Warmed(files=files, before=resident_of(files))
    if app.dry_run or found.resident == found.size:
        app.result(found.as_json(), warmed_text(found))
        return 0
    check_room(files, room_bytes())
    with warm_view(found.size, live=app.interactive) as on_bytes:
        warmed = warm_files(files, on_bytes)
    app.result(warmed.as_json(), warmed_text(warmed))
    if warmed.warm is False:
        raise WorkFailed(
            "what was read did not stay in memory: something else needs it",
            where=min(warmed.files, key=lambda file: (file.resident or 0) / max(file.size, 1)).path,
            next_step="end what uses the memory, or warm fewer files; `rlbox warm PATH --dry-run` says what is there",
        )
    return 0
