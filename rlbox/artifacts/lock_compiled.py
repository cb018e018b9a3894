"""Lock what wheels are compiled from: sources, what their builds import, the system around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rlbox.artifacts.apt_query import resolve_debs
from rlbox.artifacts.compiled import plan_source, plan_tools, stack_packages, toolchain_base
from rlbox.artifacts.git_tree import lock_git
from rlbox.artifacts.places import Places
from rlbox.artifacts.python_resolution import Inputs, Upgrade, locked_packages
from rlbox.artifacts.uv import resolve
from rlbox.target.compiled import Compile
from rlbox.target.lock import Compiled, Deb, GitTree, Lock, Package
from rlbox.target.recipe import recipe_digest
from rlbox.target.target import Target


def lock_compiled(
    target: Target, lock: Lock, before: Lock | None, upgrade: Upgrade, places: Places
) -> tuple[tuple[Deb, ...], tuple[Compiled, ...]]:
    """Return the apt packages of the system that wheels are compiled in, and what each is compiled from.

    Parameters
    ----------
    lock
        The new lock, as far as it has the stack's packages.

    Raises
    ------
    WorkFailed
        The index has no source archive of that version, or uv or apt finds no solution.
    """
    toolchain = _toolchain(target, before, upgrade, places)
    return toolchain, tuple(_rows(target, lock, before, upgrade, places, toolchain))


def _toolchain(target: Target, before: Lock | None, upgrade: Upgrade, places: Places) -> tuple[Deb, ...]:
    base = toolchain_base(target)
    if base is None:
        return ()
    kept = {deb.name: deb.version for deb in (before.toolchain if before else ()) if not upgrade.moves(deb.name)}
    return resolve_debs(base, target.python.platform, places.archives, kept, places.site.ca_bundle)


def _rows(
    target: Target, lock: Lock, before: Lock | None, upgrade: Upgrade, places: Places, toolchain: Iterable[Deb]
) -> Iterator[Compiled]:
    known = {row.name: row for row in before.compiled} if before else {}
    for group, entry in target.compiled:
        row = known.get(entry.distribution)
        source = _source(target, entry, row, upgrade, places)
        plan = plan_tools(entry, stack_packages(lock.groups), None if upgrade.everything else row, upgrade.names)
        tools = tuple(sorted(_packages(target, plan, row, upgrade, places), key=lambda package: package.name))
        digest = recipe_digest(target, entry, source, tools, toolchain)
        yield Compiled(name=entry.distribution, group=group.name, recipe=digest, source=source, tools=tools)


def _source(
    target: Target, entry: Compile, before: Compiled | None, upgrade: Upgrade, places: Places
) -> Package | GitTree:
    if entry.url:
        known = [before.source] if before and isinstance(before.source, GitTree) else []
        return locked_tree(entry.distribution, entry.url, entry.ref, known, upgrade, places)
    (source,) = _packages(target, plan_source(entry), before, upgrade, places)
    return source


def _packages(
    target: Target, inputs: Inputs, before: Compiled | None, upgrade: Upgrade, places: Places
) -> tuple[Package, ...]:
    rows = (before.source, *before.tools) if before else ()
    sizes = {row.sha256: row.size for row in rows}
    resolution = resolve(target, inputs, places.sources, places.site.ca_bundle, upgrade, sizes)
    return tuple(locked_packages(target, resolution).values())


def locked_tree(name: str, url: str, ref: str, known: Iterable[GitTree], upgrade: Upgrade, places: Places) -> GitTree:
    """Return the tree that `ref` of a repository means now, or the `known` one that `upgrade` does not move.

    Raises
    ------
    WorkFailed
        No place has the repository or the ref.
    """
    for tree in known:
        if (tree.name, tree.url, tree.ref) == (name, url, ref) and not upgrade.moves(name):
            return tree
    facts = lock_git(url, ref, places.locator.git_urls(url), places.site.ca_bundle)
    return GitTree(
        name=name, url=url, ref=ref, commit=facts.commit, tree=facts.tree, sha256=facts.sha256, size=facts.size
    )
