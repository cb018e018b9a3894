"""`rlbox lock`: pin everything that a target's image is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rlbox.app import App, own_requirements
from rlbox.cli.options import complete_target, dry_run, shared, sources_option
from rlbox.errors import SpecError, WorkFailed
from rlbox.image.act.plans import image_plan

if TYPE_CHECKING:
    from rlbox.lock.resolve import Upgrade
    from rlbox.target.lock import Lock


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.argument("packages", metavar="[NAME]...", nargs=-1)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 with a diff when the lock would change.")
@click.option("--offline", is_flag=True, help="With --check: compare with the spec alone, ask no index.")
@click.option(
    "--upgrade", is_flag=True, help="Move the packages NAME to their newest versions, all when none is named."
)
@sources_option
@dry_run
@shared
def verb(
    app: App, name: str, packages: tuple[str, ...], check: bool, offline: bool, upgrade: bool, sources: str
) -> None:
    """Pin everything that the image of TARGET is made of, with sha256, in its lock.json.

    Versions of the lock before are kept unless the spec or --upgrade moves them; a lock that fits its spec stays.

    \b
    Examples:
      rlbox lock local
      rlbox lock local --check
      rlbox lock local --upgrade transformers
    """
    if (packages and not upgrade) or (check and upgrade) or (offline and not check):
        raise click.UsageError("names go with --upgrade, --offline with --check, and --check without --upgrade")
    if check:
        _check(app, name, offline, sources)
        return
    from rlbox.lock.resolve import Upgrade

    moved = Upgrade(everything=upgrade and not packages, names=frozenset(packages))
    before, lock = _resolve(app, name, moved, sources)
    _known(packages, before, lock)
    _write(app, name, before, lock)


def _check(app: App, name: str, offline: bool, sources: str) -> None:
    from rlbox.lock.resolve import Upgrade

    plan = image_plan(app.project, name)
    if plan.lock != "current":
        raise WorkFailed(f"the lock of target {name} is {plan.lock}", next_step=f"rlbox lock {name}")
    if not offline:
        before, lock = _resolve(app, name, Upgrade(), sources, again=True)
        if before is None or before.text() != lock.text():
            raise WorkFailed(
                f"the lock of target {name} drifted: its sources no longer offer what it names\n"
                + _diff(before.text() if before else "", lock.text()),
                next_step=f"rlbox lock {name}",
            )
    app.result({"target": name, "lock": plan.lock}, f"{name}  lock is current")


def _resolve(app: App, name: str, upgrade: Upgrade, sources: str, *, again: bool = False) -> tuple[Lock | None, Lock]:
    """Return the lock before and the lock now; `again` asks the sources even when the spec did not change."""
    from rlbox.cli.rules.stack import refuse_clash
    from rlbox.fixes.load import load_fixed_target
    from rlbox.lock.act.places import lock_places
    from rlbox.lock.act.resolve import refresh_lock, resolve_lock
    from rlbox.sources.act.live import unreached_explained

    target = load_fixed_target(app.project, name).target
    refuse_clash(app, target)
    before = _before(app, name)
    files = app.project.patches(name, target.own_patches)
    patches = {path.name: path.read_text("utf-8") for path in files}
    if before and not again and not (upgrade.everything or upgrade.names):
        refreshed = refresh_lock(target, own_requirements(), before, patches)
        if refreshed:
            return before, refreshed
    places = lock_places(app, target, sources)
    with unreached_explained(sources or target.sources):
        return before, resolve_lock(target, own_requirements(), before, upgrade, places, patches)


def _before(app: App, name: str) -> Lock | None:
    from rlbox.target.lock import load_lock

    try:
        return load_lock(app.project.lock_file(name))
    except SpecError as error:
        app.say(f"{error.what}; it is made anew")
        return None


def _known(packages: tuple[str, ...], before: Lock | None, lock: Lock) -> None:
    found = {name for known in (before, lock) if known for name in known.names()}
    if unknown := sorted(set(packages) - found):
        import difflib

        near = difflib.get_close_matches(unknown[0], found, n=1)
        raise SpecError(
            f"the lock has no package {unknown[0]!r}" + (f" (did you mean {near[0]!r}?)" if near else ""),
            next_step=f"rlbox show {lock.target}",
        )


def _write(app: App, name: str, before: Lock | None, lock: Lock) -> None:
    from rlbox.files.act.folders import write_if_changed

    path = app.project.own_lock_file(name)
    changed = before is None or before.text() != lock.text()
    if not app.dry_run:
        changed = write_if_changed(path, lock.text()) or changed
    if before and before.text() != lock.text():
        app.say(_diff(before.text(), lock.text()))
    if sdists := [package.file for package in lock.packages() if not package.is_wheel]:
        app.say(f"no wheel for {lock.platform}, built from source in every image: {', '.join(sdists)}")
    counts = {"os": len(lock.debs), "runtime": len(lock.runtime.packages)}
    counts |= {group.name: len(group.packages) for group in (lock.build, *lock.groups) if group.packages}
    sizes = {"os": sum(deb.size for deb in lock.debs)}
    sizes |= {group.name: sum(p.size for p in group.packages) for group in (lock.runtime, lock.build, *lock.groups)}
    lines = [f"{group:<12} {count:>4} packages {sizes[group] / 1e6:>9.1f} MB" for group, count in counts.items()]
    state = "not written (--dry-run)" if app.dry_run else "written" if changed else "unchanged"
    app.result(
        {"target": name, "groups": counts, "bytes": sizes, "changed": changed},
        "\n".join([*lines, f"{path.name} {state}"]),
    )
    app.say(f"next: rlbox build {name}")


def _diff(old: str, new: str) -> str:
    """Return what changed, a line a file of the lock: its name, its version, the beginning of its sha256."""
    import difflib
    import json

    def short(text: str) -> list[str]:
        lines = []
        for line in text.split("\n"):
            row = line.strip().rstrip(",")
            data = json.loads(row) if row.startswith('{"name"') and row.endswith("}") else {}
            words = (data["name"], data.get("version", ""), data["sha256"][:12]) if "sha256" in data else (row,)
            lines.append(" ".join(word for word in words if word))
        return lines

    rows = difflib.unified_diff(short(old), short(new), "lock.json", "lock.json (now)", lineterm="", n=0)
    return "\n".join(line for line in rows if not line.startswith("@@"))
