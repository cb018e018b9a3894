"""Measure the mirrors of a profile with the locked files of a target, and remember their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlbox.errors import SpecError
from rlbox.machine.act.site import probe_site
from rlbox.sources.act.mirrors import probe_machine
from rlbox.sources.act.probe import probe_mirrors, remember_ranking
from rlbox.target.artifact import Artifact, artifacts, base_artifact
from rlbox.target.lock import load_lock

if TYPE_CHECKING:
    from rlbox.app import App
    from rlbox.sources.profile import Profile
    from rlbox.sources.ranking import Probed


def measure_mirrors(app: App, profile: Profile, target: str) -> tuple[Probed, ...]:
    """Return how every mirror did for a file of the target's lock, ranked; the order is remembered."""
    files = locked_files(app, target)
    found = probe_mirrors(profile, probe_machine(probe_site()), files)
    remember_ranking(profile, found)
    return found


def locked_files(app: App, target: str) -> tuple[Artifact, ...]:
    """Return the locked files of a target, its base image among them."""
    lock = load_lock(app.project.lock_file(target))
    if lock is None:
        raise SpecError(f"target {target} has no lock, and so no known file", next_step=f"rlbox lock {target}")
    return (*artifacts(lock), *base_artifact(lock.base))
