"""`rlbox store`: look after the store of fetched files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.options import dry_run, shared
from rlbox.errors import NodeError

if TYPE_CHECKING:
    from rlbox.store.act.objects import Store


@click.command()
@click.argument("action", type=click.Choice(["ls", "verify", "prune"]))
@click.option("--store", "folder", metavar="DIR", help="The store's folder [RLBOX_STORE].")
@click.option("--fix", is_flag=True, help="With verify: remove what is damaged, so that a fetch brings it again.")
@dry_run
@shared
def verb(app: App, action: str, folder: str | None, fix: bool) -> int:
    """List the store's objects, verify them all by their sha256, or prune those that no lock uses.

    \b
    Examples:
      rlbox store ls
      rlbox store verify
      rlbox store prune --dry-run
    """
    from rlbox.store.act.objects import Store, store_folder

    if fix and action != "verify":
        raise click.UsageError("--fix goes with verify.")
    if app.dry_run and action != "prune":
        raise click.UsageError("--dry-run goes with prune.")
    store = Store(store_folder(folder))
    if folder and not store.root.is_dir():
        raise NodeError(
            "there is no such store", where=str(store.root), next_step="name a folder that rlbox fetch filled"
        )
    if action == "ls":
        _list(app, store)
    elif action == "verify":
        _verify(app, store, fix=fix)
    else:
        return _prune(app, store)
    return 0


def _list(app: App, store: Store) -> None:
    from rlbox.amounts import size_text
    from rlbox.store.act.names import describe, names

    known = names(store)
    rows, lines = [], []
    for digest in store.digests():
        file, targets = known.get(digest, (None, ()))
        size = store.path(digest).stat().st_size
        facts = {key: getattr(file, key, None) for key in ("kind", "name", "file", "group")}
        rows.append({"digest": digest, "bytes": size, **facts, "targets": list(targets)})
        lines.append(f"{digest[:12]} {size_text(size):>10}  {describe(file, targets)}")
    partials = {path.name: store.partial_bytes(path.name) for path in store.partials()}
    total = sum(store.path(digest).stat().st_size for digest in store.digests())
    lines += [f"{digest[:12]} {size_text(size):>10}  half written" for digest, size in partials.items()]
    lines.append(f"{len(rows)} objects, {size_text(total)} in {store.root}")
    app.result({"store": str(store.root), "objects": rows, "bytes": total, "partial": partials}, "\n".join(lines))


def _verify(app: App, store: Store, *, fix: bool) -> None:
    from rlbox.errors import WorkFailed
    from rlbox.store.act.care import verify_objects
    from rlbox.store.act.names import describe, names

    damaged = verify_objects(store)
    known = names(store)
    count = sum(1 for _ in store.digests())
    lines = [f"{one.digest[:12]}  {describe(*known.get(one.digest, (None, ())))}" for one in damaged]
    if damaged and not fix:
        raise WorkFailed(
            f"{len(damaged)} of {count} objects are damaged\n" + "\n".join(f"  {line}" for line in lines),
            where=str(store.root),
            next_step="rlbox store verify --fix, then rlbox fetch TARGET",
        )
    for one in damaged:
        store.remove(one.digest)
    data = {"store": str(store.root), "objects": count, "removed": [one.digest for one in damaged]}
    app.result(data, "\n".join([*(f"removed {line}" for line in lines), f"{count - len(damaged)} objects are whole"]))


def _prune(app: App, store: Store) -> int:
    from rlbox.amounts import size_text
    from rlbox.store.act.care import prune
    from rlbox.store.act.names import describe, names, wanted_digests

    known = names(store)
    done = prune(store, wanted_digests(store, app.project), dry_run=app.dry_run)
    done_to = "remove" if app.dry_run else "removed"
    lines = [f"{done_to} {digest[:12]}  {describe(*known.get(digest, (None, ())))}" for digest in done.objects]
    lines += [f"{done_to} {digest[:12]}  half written" for digest in done.partials]
    data = {"store": str(store.root), "objects": done.objects, "partial": done.partials, "bytes": done.freed}
    if app.dry_run:
        would = f"free {size_text(done.freed)} in {store.root}" if lines else "remove nothing"
        return app.planned({**data, "removed": False}, "\n".join(lines), would)
    app.result({**data, "removed": True}, "\n".join([*lines, f"freed {size_text(done.freed)}"]))
    return 0
