"""`rlbox store` and `rlbox prune`: the downloaded files, and what nothing needs any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.confirmation import require_confirmation
from rlbox.cli.help import TranslatedGroup
from rlbox.cli.options import dry_run_option, pass_app_with_shared_options
from rlbox.errors import EngineError, NodeError, WorkFailed
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.artifacts.object_store import ObjectStore
    from rlbox.image.prune import EngineImage

_store_option = click.option("--store", "store_dir", metavar="DIR", help="The store's folder [RLBOX_STORE].")


@click.group(cls=TranslatedGroup, epilog="Each takes --store DIR, -v, --verbose, -q, --quiet, --json, --project DIR.")
def store() -> None:
    """List the store's objects, or verify them all; `rlbox prune` removes those that no lock uses.

    \b
    Examples:
      rlbox store ls
      rlbox store verify
    """


def _open_store(store_dir: str | None) -> ObjectStore:
    from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir

    opened = ObjectStore(resolve_store_dir(store_dir))
    if store_dir and not opened.root.is_dir():
        raise NodeError(
            _("there is no such store"), where=str(opened.root), next_step=_("name a folder that rlbox fetch filled")
        )
    return opened


@store.command("ls")
@_store_option
@pass_app_with_shared_options
def ls(app: App, store_dir: str | None) -> None:
    "List the objects in the store, with their kind and the targets that use them."
    from rlbox.amounts import decimal_size_text
    from rlbox.artifacts.store_upkeep import describe_object, map_sha256_to_recorded_file

    store = _open_store(store_dir)
    known = map_sha256_to_recorded_file(store)
    rows, lines, total = [], [], 0
    for digest in store.list_digests():
        file, targets = known.get(digest, (None, ()))
        size = store.path(digest).stat().st_size
        facts = {key: getattr(file, key, None) for key in ("kind", "name", "file", "group")}
        rows.append({"digest": digest, "bytes": size, **facts, "targets": list(targets)})
        lines.append(f"{digest[:12]} {decimal_size_text(size):>10}  {describe_object(file, targets)}")
        total += size
    partials = {path.name: store.count_partial_bytes(path.name) for path in store.list_partials()}
    lines += [f"{digest[:12]} {decimal_size_text(size):>10}  half written" for digest, size in partials.items()]
    lines.append(f"{len(rows)} objects, {decimal_size_text(total)} in {store.root}")
    app.result({"store": str(store.root), "objects": rows, "bytes": total, "partial": partials}, "\n".join(lines))


@store.command("verify")
@click.option("--fix", is_flag=True, help="Remove damaged files, so that the next fetch brings them again.")
@_store_option
@pass_app_with_shared_options
def verify(app: App, store_dir: str | None, fix: bool) -> None:
    """Verify every object by its sha256; exit code 1 when one is damaged."""
    from rlbox.artifacts.store_upkeep import describe_object, find_damaged_digests, map_sha256_to_recorded_file

    store = _open_store(store_dir)
    damaged, known = find_damaged_digests(store), map_sha256_to_recorded_file(store)
    count = len(list(store.list_digests()))
    lines = [f"{digest[:12]}  {describe_object(*known.get(digest, (None, ())))}" for digest in damaged]
    if damaged and not fix:
        raise WorkFailed(
            _("{count} of {count2} objects are damaged\n{lines}").format(
                count=len(damaged), count2=count, lines="\n".join(f"  {line}" for line in lines)
            ),
            where=str(store.root),
            next_step="rlbox store verify --fix, then rlbox fetch TARGET",
        )
    for digest in damaged:
        store.remove(digest)
    data = {"store": str(store.root), "objects": count, "removed": damaged}
    app.result(data, "\n".join([*(f"removed {line}" for line in lines), f"{count - len(damaged)} objects are whole"]))


UNUSED_S = 30 * 86_400.0
"""A cache entry is removed after so many seconds without use."""


@click.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@dry_run_option
@pass_app_with_shared_options
def prune(app: App, yes: bool) -> int:
    """Remove images that nothing needs, fetched files that no lock uses, and caches not used for 30 days.

    Of images go those that a later build replaced, and those whose target or project folder is gone. Images of other
    users stay, and so do those that a container was made from. Runs and checkpoints stay: see `rlbox runs prune`.

    \b
    Examples:
      rlbox prune --dry-run
      rlbox prune --yes
    """
    from rlbox.amounts import decimal_size_text
    from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
    from rlbox.artifacts.store_upkeep import (
        find_objects_unused_by_any_project,
        find_unused_rlbox_cache_entries,
        remove_objects_and_records_without_lock,
        remove_rlbox_cache_entries,
    )
    from rlbox.image.prune import format_would_remove_lines, sum_distinct_image_bytes, untag_or_remove_images

    images, store = _find_spare_images(app), ObjectStore(resolve_store_dir(None))
    objects = find_objects_unused_by_any_project(store, app.project)
    caches = find_unused_rlbox_cache_entries(UNUSED_S)
    object_bytes, cache_bytes = sum(objects.values()), sum(caches.values())
    freed = sum_distinct_image_bytes(images) + object_bytes + cache_bytes
    lines = format_would_remove_lines(images)
    lines += (
        [f"would remove {len(objects)} files of {store.root}, {decimal_size_text(object_bytes)}"] if objects else []
    )
    lines += (
        [f"would remove {len(caches)} caches not used for 30 days, {decimal_size_text(cache_bytes)}"] if caches else []
    )
    found = {
        "images": [row.name for row in images],
        "files": len(objects),
        "caches": len(caches),
        "bytes": freed,
    }
    if app.dry_run:
        text = "\n".join([*lines, f"would free up to {decimal_size_text(freed)}"])
        return app.planned(found, text, f"free up to {decimal_size_text(freed)}" if lines else "remove nothing")
    if lines:
        for line in lines:
            app.print_status(line)
        what = f"{len(images)} images, {len(objects)} files and {len(caches)} caches"
        require_confirmation(app, yes, f"remove {what}, up to {decimal_size_text(freed)}")
        remove_rlbox_cache_entries(caches)  # which alone may refuse
        untag_or_remove_images(images)
        remove_objects_and_records_without_lock(store, objects)
    app.result(found | {"removed": True}, f"freed up to {decimal_size_text(freed)}")
    return 0


def _find_spare_images(app: App) -> list[EngineImage]:
    """Return the images that can go; none, with a word, where no engine answers."""
    from rlbox.image.prune import list_all_rlbox_images

    try:
        return [image for image in list_all_rlbox_images(app.project) if image.spare and not image.containers]
    except EngineError as error:
        app.print_status(f"images: not looked at: {error.what}")
        return []
