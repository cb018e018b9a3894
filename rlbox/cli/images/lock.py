"""`rlbox lock`: pin everything that a target's image is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rlbox.amounts import padded
from rlbox.app import App
from rlbox.cli.offered import complete_target
from rlbox.cli.options import dry_run, shared, sources_option
from rlbox.errors import WorkFailed
from rlbox.image.plans import image_plan

if TYPE_CHECKING:
    from rlbox.artifacts.python_resolution import Upgrade
    from rlbox.target.lock import Lock


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.argument("packages", metavar="[NAME]...", nargs=-1)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 with a diff when the lock would change.")
@click.option("--offline", is_flag=True, help="With --check: compare with the spec only, without asking an index.")
@click.option(
    "--upgrade", is_flag=True, help="Move the packages NAME to their newest versions, all when none is named."
)
@sources_option
@dry_run
@shared
def verb(
    app: App, name: str, packages: tuple[str, ...], check: bool, offline: bool, upgrade: bool, sources: str
) -> int:
    """Pin everything that the image of TARGET is made of, with sha256, in its lock.json.

    Versions in the existing lock are kept unless the spec or --upgrade moves them; a lock that fits its spec is left
    alone.

    \b
    Examples:
      rlbox lock local
      rlbox lock local --check
      rlbox lock local --upgrade transformers
    """
    if (packages and not upgrade) or (check and upgrade) or (offline and not check):
        raise click.UsageError("names go with --upgrade, --offline with --check, and --check without --upgrade")
    from rlbox.artifacts.changes import refuse_unknown
    from rlbox.artifacts.python_resolution import Upgrade
    from rlbox.artifacts.relock import write_lock

    if check:
        return _check(app, name, offline, sources)
    moved = Upgrade(everything=upgrade and not packages, names=frozenset(packages))
    before, lock = _relock(app, name, moved, sources)
    refuse_unknown(packages, before, lock)
    return _tell(app, lock, changed=write_lock(app, before, lock))


def _check(app: App, name: str, offline: bool, sources: str) -> int:
    from rlbox.artifacts.changes import refuse_drift
    from rlbox.artifacts.python_resolution import Upgrade
    from rlbox.planner.stack_check import require_stack
    from rlbox.target.lock import lock_remedy

    require_stack(app, name)
    plan = image_plan(app.project, name)
    if plan.lock != "current":
        raise WorkFailed(f"the lock of target {name} is {plan.lock}", next_step=lock_remedy(name, plan.lock))
    if not offline:
        refuse_drift(name, *_relock(app, name, Upgrade(), sources, again=True))
    app.result({"target": name, "lock": plan.lock}, f"{name}  lock is current")
    return 0


def _relock(app: App, name: str, moved: Upgrade, sources: str, *, again: bool = False) -> tuple[Lock | None, Lock]:
    from rlbox.artifacts.relock import relock
    from rlbox.fixes.load import load_fixed_target
    from rlbox.planner.stack_check import refuse_clash

    loaded = load_fixed_target(app.project, name)
    refuse_clash(app, loaded.target, None)
    before, lock = relock(app, loaded.target, moved, sources, includes=loaded.includes, again=again)
    refuse_clash(app, loaded.target, lock)
    return before, lock


def _tell(app: App, lock: Lock, *, changed: bool) -> int:
    from rlbox.amounts import size_text
    from rlbox.artifacts.changes import group_counts, group_sizes

    counts, sizes = group_counts(lock), group_sizes(lock)
    lines = [f"{padded(group, 12)} {count:>4} packages {size_text(sizes[group]):>9}" for group, count in counts.items()]
    told = {"target": lock.target, "groups": counts, "bytes": sizes, "changed": changed}
    path = app.project.own_lock_file(lock.target)
    if app.dry_run:
        would = f"write {path}" if changed else f"leave {path.name} as it is"
        return app.planned(told, "\n".join(lines), would)
    name = path.name
    app.result(told, "\n".join([*lines, f"{name} written" if changed else f"{name} unchanged"]))
    app.say(f"next: rlbox {'compile' if lock.uncompiled() else 'build'} {lock.target}")
    return 0
