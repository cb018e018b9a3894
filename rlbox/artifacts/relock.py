"""Make the lock of a target anew, out of the one before and what its sources offer; write it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlbox.app import App, own_requirements
from rlbox.artifacts.changes import lock_diff
from rlbox.artifacts.live import unreached_explained
from rlbox.artifacts.places import lock_places
from rlbox.artifacts.python_resolution import Upgrade
from rlbox.artifacts.resolve import refresh_lock, resolve_lock
from rlbox.errors import SpecError
from rlbox.system.files import write_if_changed
from rlbox.target.lock import Lock, load_lock
from rlbox.target.target import Target


def relock(
    app: App, target: Target, upgrade: Upgrade, sources: str, *, includes: Sequence[str] = (), again: bool = False
) -> tuple[Lock | None, Lock]:
    """Return the lock before, None without one, and the lock now.

    Parameters
    ----------
    sources
        A sources profile, empty for the target's own.
    includes
        The targets that it includes, the nearest first. Without a lock of its own it goes on from theirs: nothing is
        resolved that its spec leaves as it is.
    again
        Ask the sources even when the spec did not change.
    """
    own = _before(app, target.name)
    before = own or _inherited(app, target.name, includes)
    files = app.project.patches(target.name, target.own_patches)
    patches = {path.name: path.read_text("utf-8") for path in files}
    if before and not again and not (upgrade.everything or upgrade.names):
        refreshed = refresh_lock(target, own_requirements(), before, patches)
        if refreshed:
            return own, refreshed
    places = lock_places(app, target, sources)
    with unreached_explained(sources or target.sources):
        return own, resolve_lock(target, own_requirements(), before, upgrade, places, patches)


def _before(app: App, name: str) -> Lock | None:
    try:
        return load_lock(app.project.lock_file(name))
    except SpecError as error:
        app.say(f"{error.what}; it is made anew")
        return None


def _inherited(app: App, name: str, includes: Sequence[str]) -> Lock | None:
    for included in includes:
        if lock := _before(app, included):
            app.say(f"{name} has no lock yet: it begins with that of {included}, which it includes")
            return replace(lock, target=name)
    return None


def write_lock(app: App, before: Lock | None, lock: Lock) -> bool:
    """Write the lock, unless it is a dry run, and say what changed; return whether something did."""
    changed = before is None or before.text() != lock.text()
    if not app.dry_run:
        changed = write_if_changed(app.project.own_lock_file(lock.target), lock.text()) or changed
    if before and before.text() != lock.text():
        app.say(lock_diff(before.text(), lock.text()))
    if sdists := [package.file for package in lock.packages() if not package.is_wheel]:
        app.say(f"no wheel for {lock.platform}, built from source in every image: {', '.join(sdists)}")
    return changed
