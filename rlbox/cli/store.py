"""`rlbox store` and `rlbox prune`: the downloaded files, and what nothing needs any more."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from rlbox.app import App
from rlbox.cli.confirmation import require_confirmation
from rlbox.cli.help import CommandGroup
from rlbox.cli.options import dry_run_option, shared_options
from rlbox.errors import NodeError, SpecError
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.artifacts.object_store import ObjectStore
    from rlbox.image.prune import EngineImage


@click.group(cls=CommandGroup, epilog="Each takes --store DIR, -v, --verbose, -q, --quiet, --json, --project DIR.")
def store() -> None:
    """List the store's objects, show or remove some, verify them all, or prune those that no lock uses.

    \b
    Examples:
      rlbox store ls
      rlbox store verify
      rlbox store prune --dry-run
    """


def _of_store(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--store`; the action gets the store that it names, by default this user's."""

    @click.option("--store", "folder", metavar="DIR", help="The store's folder [RLBOX_STORE].")
    @shared_options
    @functools.wraps(function)
    def with_store(app: App, folder: str | None, **rest: Any) -> Any:
        from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir

        store = ObjectStore(resolve_store_dir(folder))
        if folder and not store.root.is_dir():
            raise NodeError(
                _("there is no such store"), where=str(store.root), next_step=_("name a folder that rlbox fetch filled")
            )
        return function(app, store, **rest)

    return with_store


@store.command("ls")
@_of_store
def ls(app: App, store: ObjectStore) -> None:
    """List the store's objects: what each is, and the targets that use it."""
    _list(app, store)


@store.command("show")
@click.argument("name", metavar="OBJECT")
@_of_store
def show(app: App, store: ObjectStore, name: str) -> None:
    """Show one object: what it is, its size and place, and the targets that use it.

    OBJECT is a unique prefix of its sha256, or the name of its file.

    \b
    Example:
      rlbox store show 0a1b2c3d
    """
    from rlbox.amounts import columns, size_text
    from rlbox.artifacts.store_upkeep import describe_object, map_objects_to_targets

    (digest,) = _found(store, (name,))
    path, (file, targets) = store.path(digest), map_objects_to_targets(store).get(digest, (None, ()))
    size = path.stat().st_size
    rows = [
        ("object", describe_object(file, targets)),
        ("sha256", digest),
        ("size", size_text(size)),
        ("place", str(path)),
    ]
    data = {"digest": digest, "bytes": size, "path": str(path), "file": file and file.file, "targets": list(targets)}
    app.result(data, "\n".join(columns(rows)))


@store.command("verify")
@click.option("--fix", is_flag=True, help="Remove damaged files, so that the next fetch brings them again.")
@_of_store
def verify(app: App, store: ObjectStore, fix: bool) -> None:
    """Verify every object by its sha256; exit code 1 when one is damaged."""
    _verify(app, store, fix=fix)


@store.command("rm")
@click.argument("wanted", metavar="OBJECT...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@dry_run_option
@_of_store
def remove(app: App, store: ObjectStore, wanted: tuple[str, ...], yes: bool) -> int:
    """Remove objects by a unique prefix of their sha256, or the name of their file; a fetch brings them again.

    \b
    Example:
      rlbox store rm 0a1b2c3d --dry-run
    """
    from rlbox.amounts import counted, size_text
    from rlbox.artifacts.store_upkeep import describe_object, map_objects_to_targets

    digests, known = _found(store, wanted), map_objects_to_targets(store)
    freed = sum(store.path(digest).stat().st_size for digest in digests)
    data = {"store": str(store.root), "objects": digests, "bytes": freed}
    told = [f"{digest[:12]}  {describe_object(*known.get(digest, (None, ())))}" for digest in digests]
    if app.dry_run:
        would = f"free {size_text(freed)} in {store.root}"
        return app.planned(data, "\n".join(f"remove {line}" for line in told), would)
    for line in told:
        app.say(f"remove {line}")
    require_confirmation(app, yes, f"remove {counted(len(digests), 'object', 'objects')}, {size_text(freed)}")
    for digest in digests:
        store.remove(digest)
    app.result(data | {"removed": True}, f"freed {size_text(freed)}")
    return 0


@store.command("prune")
@dry_run_option
@_of_store
def store_prune(app: App, store: ObjectStore) -> int:
    """Remove the objects that no lock uses, of no project that fetched into this store."""
    return _prune_store(app, store)


def _found(store: ObjectStore, wanted: tuple[str, ...]) -> list[str]:
    """Return the digests that were named, each once."""
    from rlbox.artifacts.store_upkeep import map_objects_to_targets

    files = {digest: file.file.rpartition("/")[2] for digest, (file, __) in map_objects_to_targets(store).items()}
    found: dict[str, None] = {}
    for name in wanted:
        hits = [digest for digest in store.list_digests() if digest.startswith(name) or files.get(digest) == name]
        if len(hits) != 1:
            what = (
                _("the store has {count} objects {name!r}").format(count=len(hits), name=name)
                if hits
                else _("the store has no object {name!r}").format(name=name)
            )
            raise SpecError(what, where=str(store.root), next_step="rlbox store ls")
        found[hits[0]] = None
    return list(found)


def _list(app: App, store: ObjectStore) -> None:
    from rlbox.amounts import size_text
    from rlbox.artifacts.store_upkeep import describe_object, map_objects_to_targets

    known = map_objects_to_targets(store)
    rows, lines = [], []
    for digest in store.list_digests():
        file, targets = known.get(digest, (None, ()))
        size = store.path(digest).stat().st_size
        facts = {key: getattr(file, key, None) for key in ("kind", "name", "file", "group")}
        rows.append({"digest": digest, "bytes": size, **facts, "targets": list(targets)})
        lines.append(f"{digest[:12]} {size_text(size):>10}  {describe_object(file, targets)}")
    partials = {path.name: store.count_partial_bytes(path.name) for path in store.list_partials()}
    total = sum(store.path(digest).stat().st_size for digest in store.list_digests())
    lines += [f"{digest[:12]} {size_text(size):>10}  half written" for digest, size in partials.items()]
    lines.append(f"{len(rows)} objects, {size_text(total)} in {store.root}")
    app.result({"store": str(store.root), "objects": rows, "bytes": total, "partial": partials}, "\n".join(lines))


def _verify(app: App, store: ObjectStore, *, fix: bool) -> None:
    from rlbox.artifacts.store_upkeep import describe_object, map_objects_to_targets, verify_objects
    from rlbox.errors import WorkFailed

    damaged = verify_objects(store)
    known = map_objects_to_targets(store)
    count = sum(1 for __ in store.list_digests())
    lines = [f"{one.digest[:12]}  {describe_object(*known.get(one.digest, (None, ())))}" for one in damaged]
    if damaged and not fix:
        raise WorkFailed(
            _("{count} of {count2} objects are damaged\n{lines}").format(
                count=len(damaged), count2=count, lines="\n".join(f"  {line}" for line in lines)
            ),
            where=str(store.root),
            next_step="rlbox store verify --fix, then rlbox fetch TARGET",
        )
    for one in damaged:
        store.remove(one.digest)
    data = {"store": str(store.root), "objects": count, "removed": [one.digest for one in damaged]}
    app.result(data, "\n".join([*(f"removed {line}" for line in lines), f"{count - len(damaged)} objects are whole"]))


def _prune_store(app: App, store: ObjectStore) -> int:
    from rlbox.amounts import size_text
    from rlbox.artifacts.store_upkeep import collect_used_digests, describe_object, map_objects_to_targets, prune_store

    known = map_objects_to_targets(store)
    done = prune_store(store, collect_used_digests(store, app.project), dry_run=app.dry_run)
    done_to = "remove" if app.dry_run else "removed"
    lines = [f"{done_to} {digest[:12]}  {describe_object(*known.get(digest, (None, ())))}" for digest in done.objects]
    lines += [f"{done_to} {digest[:12]}  half written" for digest in done.partials]
    data = {"store": str(store.root), "objects": done.objects, "partial": done.partials, "bytes": done.freed_bytes}
    if app.dry_run:
        would = f"free {size_text(done.freed_bytes)} in {store.root}" if lines else "remove nothing"
        return app.planned({**data, "removed": False}, "\n".join(lines), would)
    app.result({**data, "removed": True}, "\n".join([*lines, f"freed {size_text(done.freed_bytes)}"]))
    return 0


UNUSED_S = 30 * 86_400.0
"""A cache entry is removed after so many seconds without use."""


@click.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@dry_run_option
@shared_options
def prune(app: App, yes: bool) -> int:
    """Remove images that nothing needs, fetched files that no lock uses, and caches not used for 30 days.

    It includes what `rlbox images prune` and `rlbox store prune` do. Runs and checkpoints stay: see `rlbox runs prune`.

    \b
    Examples:
      rlbox prune --dry-run
      rlbox prune --yes
    """
    from rlbox.amounts import size_text
    from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
    from rlbox.artifacts.store_upkeep import (
        collect_used_digests,
        find_unused_cache_entries,
        prune_store,
        remove_cache_entries,
    )
    from rlbox.image.prune import format_prune, remove_images, sum_image_bytes

    images, store = _spare_images(app), ObjectStore(resolve_store_dir(""))
    wanted = collect_used_digests(store, app.project)
    spare = prune_store(store, wanted, dry_run=True)
    caches = find_unused_cache_entries(UNUSED_S)
    cached = sum(row.size for row in caches)
    files, freed = len(spare.objects) + len(spare.partials), sum_image_bytes(images) + spare.freed_bytes + cached
    lines = format_prune(((row, "") for row in images), done=False)
    lines += [f"would remove {files} files of {store.root}, {size_text(spare.freed_bytes)}"] if files else []
    lines += [f"would remove {len(caches)} caches not used for 30 days, {size_text(cached)}"] if caches else []
    found = {"images": [row.name for row in images], "files": files, "caches": len(caches), "bytes": freed}
    if app.dry_run:
        text = "\n".join([*lines, f"would free up to {size_text(freed)}"])
        return app.planned(found, text, f"free up to {size_text(freed)}" if lines else "remove nothing")
    if lines:
        for line in lines:
            app.say(line)
        require_confirmation(
            app, yes, f"remove {len(images)} images, {files} files and {len(caches)} caches, up to {size_text(freed)}"
        )
        remove_cache_entries(caches)  # which alone may refuse
        remove_images(images)
        prune_store(store, wanted, dry_run=False)
    app.result(found | {"removed": True}, f"freed up to {size_text(freed)}")
    return 0


def _spare_images(app: App) -> list[EngineImage]:
    """Return the images that can go; none, with a word, where no engine answers."""
    from rlbox.errors import EngineError
    from rlbox.image.prune import explain_kept_image, list_engine_images

    try:
        return [row for row in list_engine_images(app.project) if not explain_kept_image(row)]
    except EngineError as error:
        app.say(f"images: not looked at: {error.what}")
        return []
