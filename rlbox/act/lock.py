"""Resolve everything that a target's lock pins: apt and Python packages, git trees, files, patches."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlbox.act.apt import resolve_debs
from rlbox.act.uv import resolve
from rlbox.errors import SpecError
from rlbox.plan.lock import Further, Upgrade, kept_versions, plan_inputs, plan_lock
from rlbox.plan.sources import SourcePlan
from rlbox.spec.lock import Deb, Lock, Patch
from rlbox.spec.target import Target


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where a lock is resolved from: settings for uv, apt archives by name, CA bundle (empty: the system's own)."""

    sources: SourcePlan
    archives: Mapping[str, str]
    ca_bundle: str


def resolve_lock(
    target: Target, runtime: tuple[str, ...], before: Lock | None, upgrade: Upgrade, places: Places, patches: Path
) -> Lock:
    """Return the target's lock; what `before` holds is kept where the spec still allows it and `upgrade` does not move it.

    Parameters
    ----------
    patches
        The target's folder of patches.

    Raises
    ------
    WorkFailed
        uv or apt finds no solution, or a source does not answer; what they said is quoted.
    SpecError
        A patch is missing.
    """
    kept = kept_versions(before, upgrade)
    sizes = {package.sha256: package.size for package in before.packages()} if before else {}
    resolved = {
        inputs.name: resolve(target, inputs, places.sources, places.ca_bundle, upgrade, sizes)
        for inputs in plan_inputs(target, runtime, kept)
    }
    further = Further(debs=_debs(target, kept.get("apt", {}), places), patches=_patches(target, patches))
    return plan_lock(target, runtime, resolved, further)


def _debs(target: Target, pins: Mapping[str, str], places: Places) -> tuple[Deb, ...]:
    if not target.base.bootstrap:
        return ()
    return resolve_debs(target.base, target.python.platform, places.archives, pins, places.ca_bundle)


def _patches(target: Target, folder: Path) -> tuple[Patch, ...]:
    found = []
    for patch in target.patches:
        try:
            found.append(Patch(name=patch.file, sha256=hashlib.sha256((folder / patch.file).read_bytes()).hexdigest()))
        except OSError as error:
            raise SpecError(f"patches: {patch.file} cannot be read: {error.strerror}", where=str(folder)) from error
    return tuple(found)
