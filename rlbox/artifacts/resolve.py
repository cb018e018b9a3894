"""Resolve everything that a target's lock pins: apt and Python packages, git trees, files, patches."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from rlbox.artifacts.apt_query import resolve_debs, resolve_debs_on_image
from rlbox.artifacts.base_image import fetch_base
from rlbox.artifacts.compiled import with_wheels
from rlbox.artifacts.lock_compiled import lock_compiled, locked_tree
from rlbox.artifacts.places import Places
from rlbox.artifacts.python_resolution import Upgrade, kept_versions, plan_inputs, plan_lock
from rlbox.artifacts.uv import resolve
from rlbox.errors import WorkFailed
from rlbox.i18n import _
from rlbox.system.http import NoResponseError, create_client, explain_no_response
from rlbox.target.lock import Deb, GitTree, HttpFile, Lock, lock_checksum, lock_patch
from rlbox.target.target import GitSource, HttpSource, Target


def resolve_lock(
    target: Target,
    runtime: tuple[str, ...],
    before: Lock | None,
    upgrade: Upgrade,
    places: Places,
    patches: Mapping[str, str],
) -> Lock:
    """Return the target's lock; `before` is kept where the spec still allows it and `upgrade` does not move it.

    Parameters
    ----------
    patches
        The target's patches, file name to text.

    Raises
    ------
    WorkFailed
        uv or apt finds no solution, or a source does not answer; what they said is quoted.
    """
    kept = kept_versions(before, upgrade)
    sizes = {package.sha256: package.size for package in before.packages()} if before else {}
    resolved = {
        inputs.name: resolve(target, inputs, places.sources, places.site.ca_bundle, upgrade, sizes)
        for inputs in plan_inputs(target, runtime, kept)
    }
    planned = plan_lock(target, runtime, resolved)
    toolchain, compiled = lock_compiled(target, planned, before, upgrade, places)
    lock = replace(
        planned,
        debs=_debs(target, kept.get("apt", {}), places),
        toolchain=toolchain,
        compiled=compiled,
        git=tuple(_git(source, before, upgrade, places) for source in target.git),
        http=tuple(_http(source, before, upgrade, places) for source in target.http),
        patches=tuple(lock_patch(file, patches[file]) for file in target.own_patches),
    )
    return with_wheels(lock, before)


def refresh_lock(target: Target, runtime: tuple[str, ...], lock: Lock, patches: Mapping[str, str]) -> Lock | None:
    """Return the lock with its patches as they are now, or None when the spec wants more than that."""
    made_for = (lock.target, lock.python, lock.platform, lock.spec)
    if made_for != (target.name, target.python.version, target.python.platform, lock_checksum(target, runtime)):
        return None
    return replace(lock, patches=tuple(lock_patch(file, patches[file]) for file in target.own_patches))


def _debs(target: Target, pins: Mapping[str, str], places: Places) -> tuple[Deb, ...]:
    base, platform, ca_bundle = target.base, target.python.platform, places.site.ca_bundle
    if base.bootstrap:
        return resolve_debs(base, platform, places.archives, pins, ca_bundle)
    if not base.packages:
        return ()
    fetch_base(base.image, platform, places.store, places.images, ca_bundle)
    return resolve_debs_on_image(base, platform, places.store, places.archives, pins, ca_bundle)


def _git(source: GitSource, before: Lock | None, upgrade: Upgrade, places: Places) -> GitTree:
    return locked_tree(source.name, source.url, source.ref, before.git if before else (), upgrade, places)


def _http(source: HttpSource, before: Lock | None, upgrade: Upgrade, places: Places) -> HttpFile:
    for known in before.http if before else ():
        if (known.name, known.url) == (source.name, source.url) and not upgrade.moves(source.name):
            return known
    tries = []
    for link in places.locator.http_urls(source.url):
        digest, size = hashlib.sha256(), 0
        try:
            with create_client(places.site) as http, http.ask("GET", link.url) as answer:
                if answer.status == 200:
                    for block in answer.blocks():
                        digest.update(block)
                        size += len(block)
                    return HttpFile(name=source.name, url=source.url, sha256=digest.hexdigest(), size=size)
            tries.append(f"\n  {link.mirror}: answered {answer.status}")
        except NoResponseError as error:
            tries.append(f"\n  {link.mirror}: {explain_no_response(error)}")
    raise WorkFailed(
        _("{url}: no place has the file{tries}").format(url=source.url, tries="".join(tries)),
        where=f"http.{source.name}",
    )
