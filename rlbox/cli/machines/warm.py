"""`rlbox warm`: a model's files into the page cache, at the disk's speed, and proof that they are there."""

from __future__ import annotations

from pathlib import Path

import click

from rlbox.app import App
from rlbox.cli.options import dry_run, shared


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@dry_run
@shared
def verb(app: App, paths: tuple[Path, ...]) -> int:
    """Read files, or all files of folders, into memory, so that the next load does not wait for the disk.

    What is in memory already is not read again. Afterwards the kernel is asked what is in memory: anything missing
    gives exit code 1. Files larger than the memory are refused, since reading them would only evict others.

    \b
    Examples:
      rlbox warm /data/models/Qwen3-8B
      rlbox warm /data/models/Qwen3-8B --dry-run
    """
    from rlbox.amounts import size_text
    from rlbox.errors import WorkFailed
    from rlbox.evaluation.prefetch import find_files, look_at, warm_files
    from rlbox.evaluation.prefetch_plan import check_room, warmed_text
    from rlbox.system.limits import available_memory
    from rlbox.system.progress import show_byte_progress

    found = look_at(find_files(paths))
    missing = sum(piece.length for piece in found.pieces if not piece.whole)
    if app.dry_run:
        with app.checking("memory"):
            check_room(found.files, available_memory())
        would = f"read {size_text(missing)} into memory" if missing else "read nothing: it is in memory"
        return app.planned(found.as_json(), warmed_text(found), would)
    if found.resident == found.size:
        app.result(found.as_json(), warmed_text(found))
        return 0
    check_room(found.files, available_memory())
    with show_byte_progress(app, "into memory", missing) as on_bytes:
        warmed = warm_files(found, on_bytes)
    app.result(warmed.as_json(), warmed_text(warmed))
    if warmed.warm is False:
        app.say("warm: what was read did not stay in memory, since something else needs it; end that, or warm less")
        return WorkFailed.exit_code
    return 0
