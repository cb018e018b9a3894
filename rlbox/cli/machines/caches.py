"""`rlbox caches`: what rlbox keeps to be quick, how large it is, and its removal."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.asked import confirm
from rlbox.cli.options import Age, dry_run, shared
from rlbox.cli.told import ToldGroup

if TYPE_CHECKING:
    from rlbox.files.act.caches import CacheEntry

UNUSED_S = 30 * 86_400.0
"""After so long without use an entry goes."""


@click.group(cls=ToldGroup, invoke_without_command=True)
@shared
@click.pass_context
def verb(ctx: click.Context, app: App) -> None:
    """List what rlbox keeps on this machine to be quick, all of which it can make again; remove what is not used.

    -v lists each entry by its name. Fetched files are in the store (`rlbox store`), images in the engine
    (`rlbox images`).

    \b
    Examples:
      rlbox caches
      rlbox caches prune --older 7d --dry-run
    """
    if not ctx.invoked_subcommand:
        _list(app)


@click.command("ls")
@shared
def ls(app: App) -> None:
    """List the caches, as `rlbox caches` does; -v lists each entry by its name."""
    _list(app)


@click.command("rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@dry_run
@shared
def remove(app: App, names: tuple[str, ...], yes: bool) -> int:
    """Remove entries by the names that `rlbox caches` lists, or all of a cache by its name.

    \b
    Examples:
      rlbox caches rm contexts/local --yes
      rlbox caches rm logs --dry-run
    """
    from rlbox.errors import SpecError
    from rlbox.files.act.caches import cache_entries

    entries = cache_entries()
    for name in names:
        if not any(name in (entry.name, entry.kind) for entry in entries):
            raise SpecError(f"no cache has {name!r}", next_step="rlbox caches")
    return _carry_out(app, [entry for entry in entries if {entry.name, entry.kind} & {*names}], yes=yes)


@click.command("prune")
@click.option("--older", type=Age(), default="30d", metavar="TIME", help="Not used for so long [30d].")
@click.option("--yes", is_flag=True, help="Do not ask.")
@dry_run
@shared
def prune(app: App, older: float, yes: bool) -> int:
    """Remove what was not used for a time.

    \b
    Examples:
      rlbox caches prune --dry-run
      rlbox caches prune --older 7d --yes
    """
    return _carry_out(app, unused(older), yes=yes)


def unused(older_s: float) -> list[CacheEntry]:
    """Return the entries that were not used for so many seconds."""
    from rlbox.files.act.caches import cache_entries

    before = time.time() - older_s
    return [entry for entry in cache_entries() if entry.used_at < before]


def _list(app: App) -> None:
    from rlbox.amounts import columns, duration_text, size_text
    from rlbox.files.act.caches import KINDS, cache_entries
    from rlbox.files.act.folders import cache_folder
    from rlbox.printable import isolated

    entries, now = cache_entries(), time.time()
    total, rows = sum(row.size for row in entries), []
    for kind, what in KINDS.items():
        if inside := [row for row in entries if row.kind == kind]:
            size, unused_s = sum(row.size for row in inside), now - max(row.used_at for row in inside)
            rows.append((isolated(kind), str(len(inside)), size_text(size), duration_text(max(0.0, unused_s)), what))
    lines = columns([("cache", "entries", "size", "not used for", "what"), *rows]) if rows else []
    if app.verbosity > 0:
        lines += [f"{isolated(row.name)}  {size_text(row.size)}" for row in entries]
    lines.append(f"{size_text(total)} in {isolated(cache_folder())}")
    facts = [{"name": row.name, "bytes": row.size, "used_at": row.used_at} for row in entries]
    app.result({"folder": str(cache_folder()), "caches": facts, "bytes": total}, "\n".join(lines))


def _lines(entries: Iterable[CacheEntry], did: str) -> list[str]:
    from rlbox.amounts import size_text
    from rlbox.printable import isolated

    return [f"{did} {isolated(row.name)}, {size_text(row.size)}" for row in entries]


def _carry_out(app: App, entries: list[CacheEntry], *, yes: bool) -> int:
    from rlbox.amounts import counted, size_text
    from rlbox.files.act.caches import remove_entries

    freed = sum(row.size for row in entries)
    found = {"caches": [{"name": row.name, "bytes": row.size} for row in entries], "bytes": freed}
    count = counted(len(entries), "entry", "entries")
    if app.dry_run:
        text = "\n".join([*_lines(entries, "remove"), f"would free {size_text(freed)}"])
        return app.planned(found, text, f"remove {count} of caches" if entries else "remove nothing")
    if entries:
        for line in _lines(entries, "remove"):
            app.say(line)
        confirm(app, yes, f"remove {count} of caches, {size_text(freed)}")
        remove_entries(entries)
    app.result(found | {"removed": True}, "\n".join([*_lines(entries, "removed"), f"freed {size_text(freed)}"]))
    return 0


for command in (ls, remove, prune):
    verb.add_command(command)
