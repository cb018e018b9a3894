"""`rlbox store` and `rlbox prune`: the downloaded files, and what nothing needs any more."""

from __future__ import annotations

import click

from rlbox.amounts import decimal_size_text
from rlbox.app import App
from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
from rlbox.artifacts.store_upkeep import (
    describe_object,
    find_damaged_digests,
    find_unused_objects_and_partials,
    find_unused_rlbox_cache_entries,
    map_sha256_to_recorded_file,
    remove_objects_and_records_of_gone_lock_files,
    require_unlocked_and_remove_cache_entries,
)
from rlbox.cli.help import TranslatedGroup
from rlbox.cli.options import confirm_unless_yes, dry_run_option, pass_app_with_shared_options, yes_option
from rlbox.errors import EngineError, WorkFailed
from rlbox.i18n import _, join
from rlbox.image.prune import (
    NamedEngineImage,
    format_would_remove_lines,
    list_all_rlbox_images,
    sum_bytes_of_distinct_images,
    untag_or_remove_images,
)


@click.group(cls=TranslatedGroup, epilog="Each takes -v, --verbose, -q, --quiet, --json, --project DIR.")
def store() -> None:
    """List the store's objects, or verify them all; `rlbox prune` removes those that no lock uses.

    \b
    Examples:
      rlbox store ls
    """


@store.command("ls")
@pass_app_with_shared_options
def list_store_objects(app: App) -> None:
    "List the objects in the store, with their kind and the targets that use them."
    store = ObjectStore(resolve_store_dir(None))
    known = map_sha256_to_recorded_file(store)
    rows, lines, total = [], [], 0
    for digest in store.list_digests():
        file, targets = known.get(digest, (None, ()))
        size = store.path(digest).stat().st_size
        facts = {key: getattr(file, key, None) for key in ("kind", "name", "file", "group")}
        rows.append({"digest": digest, "bytes": size, **facts, "targets": list(targets)})
        lines.append(f"{digest[:12]} {decimal_size_text(size):>10}  " + describe_object(file, targets))
        total += size
    partials = {path.name: store.count_partial_bytes(path.name) for path in store.list_partials()}
    lines += [f"{digest[:12]} {decimal_size_text(size):>10}  " + _("half written") for digest, size in partials.items()]
    lines.append(
        _("{count} objects, {size} in {store}").format(count=len(rows), size=decimal_size_text(total), store=store.root)
    )
    app.output({"store": str(store.root), "objects": rows, "bytes": total, "partial": partials}, join("\n", lines))


@store.command("verify")
@click.option("--fix", "removes", is_flag=True, help="Remove damaged files; the next fetch downloads them again.")
@pass_app_with_shared_options
def verify_store_objects(app: App, removes: bool) -> None:
    """Verify every object by its sha256; exit code 1 when one is damaged."""
    store = ObjectStore(resolve_store_dir(None))
    damaged, known = find_damaged_digests(store), map_sha256_to_recorded_file(store)
    count = len(list(store.list_digests()))
    lines = [f"{digest[:12]}  " + describe_object(*known.get(digest, (None, ()))) for digest in damaged]
    if damaged and not removes:
        raise WorkFailed(
            _("{count} of {count2} objects are damaged\n{lines}").format(
                count=len(damaged), count2=count, lines=join("\n", ("  " + line for line in lines))
            ),
            where=str(store.root),
            next_step=_("rlbox store verify --fix, then rlbox fetch TARGET"),
        )
    for digest in damaged:
        store.remove(digest)
    data = {"store": str(store.root), "objects": count, "removed": damaged}
    text = [_("removed {line}").format(line=line) for line in lines]
    text.append(_("{count} objects are intact").format(count=count - len(damaged)))
    app.output(data, join("\n", text))


UNUSED_S = 30 * 86_400.0
"""A cache entry is removed after so many seconds without use."""


@click.command("prune")
@yes_option
@dry_run_option
@pass_app_with_shared_options
def prune_images_files_and_caches(app: App, yes: bool) -> int:
    """Remove images that nothing needs, fetched files that no lock uses, and caches not used for 30 days.

    Of images go those that a later build replaced, and those whose target or project folder is gone. Images of other
    users stay, and so do those that a container was made from. Runs and checkpoints stay: see `rlbox runs prune`.

    \b
    Examples:
      rlbox prune --yes
    """
    images, store = _find_spare_images(app), ObjectStore(resolve_store_dir(None))
    objects = find_unused_objects_and_partials(store, app.project)
    caches = find_unused_rlbox_cache_entries(UNUSED_S, store)
    object_bytes, cache_bytes = sum(objects.values()), sum(caches.values())
    lines = format_would_remove_lines(images)
    if objects:
        line = _("would remove {count} files of {store}, {size}")
        lines.append(line.format(count=len(objects), store=store.root, size=decimal_size_text(object_bytes)))
    if caches:
        line = _("would remove {count} caches not used for 30 days, {size}")
        lines.append(line.format(count=len(caches), size=decimal_size_text(cache_bytes)))
    size = sum_bytes_of_distinct_images(images) + object_bytes + cache_bytes
    freed = decimal_size_text(size)
    names = [image.name for image in images]
    data = {"images": names, "files": len(objects), "caches": len(caches), "bytes": size}
    if app.dry_run:
        text = join("\n", [*lines, _("would free up to {freed}").format(freed=freed)])
        would = _("free up to {freed}").format(freed=freed) if lines else _("remove nothing")
        return app.print_dry_run(data, text, would)
    if lines:
        for line in lines:
            app.print_status(line)
        counts = _("{images} images, {files} files and {caches} caches").format(
            images=len(images), files=len(objects), caches=len(caches)
        )
        confirm_unless_yes(app, yes, _("remove {counts}, up to {freed}").format(counts=counts, freed=freed))
        require_unlocked_and_remove_cache_entries(caches)  # which alone may refuse
        untag_or_remove_images(images)
        remove_objects_and_records_of_gone_lock_files(store, objects)
    app.output(data | {"removed": True}, _("freed up to {freed}").format(freed=freed))
    return 0


def _find_spare_images(app: App) -> list[NamedEngineImage]:
    """Return the images that can go; none, with a word, where no engine answers."""
    try:
        return [image for image in list_all_rlbox_images(app.project) if image.spare and not image.containers]
    except EngineError as error:
        app.print_status(_("images: not looked at: {what}").format(what=error.what))
        return []
