"""Lock the inputs of compiled wheels: source, build requirements, and the system that they are built in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from rlbox.artifacts.apt_lock import resolve_bootstrap_debs
from rlbox.artifacts.git_tree import resolve_git_ref
from rlbox.artifacts.python_lock import PINS, ResolverInputs, UpgradeRequest, resolve_packages, select_package_files
from rlbox.artifacts.source_selection import LockSources
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.target.compiled import COMPILER_WHEELS, Compile
from rlbox.target.lock import CompileInputs, Deb, GitTree, Lock, LockedGroup, Package, compute_recipe_digest
from rlbox.target.target import Base, Target

# A C++ compiler with what it needs, and Python's headers.
_TOOLCHAIN = ("g++", "python3-dev")


def plan_inputs_to_find_sdist(entry: Compile) -> ResolverInputs:
    """Return what uv is asked for the source archive of an entry; its metadata are given, for they need the build."""
    name, version = entry.distribution_name, entry.version
    settings = (
        f'no-binary-package = ["{name}"]\n'
        f'[[dependency-metadata]]\nname = "{name}"\nversion = "{version}"\nrequires-dist = []\n'
    )
    files = {"source.in": f"{name}=={version}\n", "uv.toml": settings, PINS: ""}
    return ResolverInputs(name=f"source of {name}", files=files)


def plan_tool_resolver_inputs(
    entry: Compile, stack_packages: Iterable[Package], previous: CompileInputs | None, upgraded_names: Iterable[str]
) -> ResolverInputs:
    """Return what uv is asked for the packages that a build imports.

    `stack_packages`: What is asked for without a version has theirs, and so have its requirements.
    `previous`: Other packages of the lock before are kept, but for `upgraded_names`.
    """
    versions = {str(canonicalize_name(package.name)): package.version for package in stack_packages}
    kept = {package.name: package.version for package in previous.tools} if previous else {}
    pins: dict[str, str] = {
        **{name: version for name, version in kept.items() if name not in set(upgraded_names)},
        **versions,
    }
    roots = [_root(text, versions) for text in entry.needs]
    roots += [f"{name}=={entry.cuda}.*" for name in COMPILER_WHEELS if entry.cuda]
    return ResolverInputs(
        name=f"tools of {entry.distribution_name}",
        files={
            "tools.in": "".join(f"{line}\n" for line in sorted(roots)),
            PINS: "".join(f"{name}=={version}\n" for name, version in sorted(pins.items())),
        },
    )


def _root(text: str, versions: Mapping[str, str]) -> str:
    try:
        asked = Requirement(text)
    except InvalidRequirement as error:
        raise SpecError(
            _("stack.compile.needs: {text!r} is not a requirement: {error}").format(text=text, error=error)
        ) from error
    version = versions.get(canonicalize_name(asked.name))
    return f"{text}=={version}" if version and not asked.specifier else text


def derive_bootstrapped_compiler_base(target: Target) -> Base | None:
    """Return the bootstrapped system that a target's wheels are compiled in; None where nothing is, or none is made."""
    if not target.list_compile_entries or not target.base.bootstrap:
        return None
    named = {package for __, entry in target.list_compile_entries for package in entry.packages}
    return target.base.model_copy(update={"packages": tuple(sorted({*_TOOLCHAIN, *named}))})


def keep_matching_compiled_wheels(lock: Lock, previous_lock: Lock | None) -> Lock:
    for row in lock.compiled:
        wheel = previous_lock.find_compiled_wheel(row) if previous_lock else None
        if wheel:
            lock = lock.with_compiled_wheel(row, wheel)
    return lock


def _list_indexed_packages(groups: Iterable[LockedGroup]) -> tuple[Package, ...]:
    return tuple(package for group in groups for package in group.packages if package.is_from_index)


class ResolvedInputs(NamedTuple):
    toolchain: tuple[Deb, ...]
    compiled: tuple[CompileInputs, ...]


def resolve_compiled_inputs(
    target: Target, lock: Lock, previous_lock: Lock | None, upgrade: UpgradeRequest, lock_sources: LockSources
) -> ResolvedInputs:
    """Return the apt packages of the system that wheels are compiled in, and what each is compiled from.

    `lock`: The new lock, as far as it has the stack's packages.
    Raises WorkFailed: the index has no source archive of that version, or uv or apt finds no solution.
    """
    toolchain = _toolchain(target, previous_lock, upgrade, lock_sources)
    return ResolvedInputs(toolchain, tuple(_rows(target, lock, previous_lock, upgrade, lock_sources, toolchain)))


def _toolchain(
    target: Target, before: Lock | None, upgrade: UpgradeRequest, lock_sources: LockSources
) -> tuple[Deb, ...]:
    base = derive_bootstrapped_compiler_base(target)
    if base is None:
        return ()
    kept = {deb.name: deb.version for deb in (before.toolchain if before else ()) if not upgrade.allows(deb.name)}
    return resolve_bootstrap_debs(
        base, target.python.platform, lock_sources.url_by_apt_archive, kept, lock_sources.network_settings.ca_bundle
    )


def _rows(
    target: Target,
    lock: Lock,
    before: Lock | None,
    upgrade: UpgradeRequest,
    lock_sources: LockSources,
    toolchain: Iterable[Deb],
) -> Iterator[CompileInputs]:
    known = {row.name: row for row in before.compiled} if before else {}
    for group, entry in target.list_compile_entries:
        row = known.get(entry.distribution_name)
        source = _source(target, entry, row, upgrade, lock_sources)
        plan = plan_tool_resolver_inputs(
            entry, _list_indexed_packages(lock.groups), None if upgrade.all_packages else row, upgrade.packages
        )
        tools = tuple(sorted(_packages(target, plan, row, upgrade, lock_sources), key=lambda package: package.name))
        digest = compute_recipe_digest(target, entry, source, tools, toolchain)
        yield CompileInputs(name=entry.distribution_name, group=group.name, recipe=digest, source=source, tools=tools)


def _source(
    target: Target, entry: Compile, before: CompileInputs | None, upgrade: UpgradeRequest, lock_sources: LockSources
) -> Package | GitTree:
    if entry.url:
        known = [before.source] if before and isinstance(before.source, GitTree) else []
        return resolve_git_tree(entry.distribution_name, entry.url, entry.ref, known, upgrade, lock_sources)
    (source,) = _packages(target, plan_inputs_to_find_sdist(entry), before, upgrade, lock_sources)
    return source


def _packages(
    target: Target,
    inputs: ResolverInputs,
    before: CompileInputs | None,
    upgrade: UpgradeRequest,
    lock_sources: LockSources,
) -> tuple[Package, ...]:
    rows = (before.source, *before.tools) if before else ()
    sizes = {row.sha256: row.size for row in rows}
    resolution = resolve_packages(
        target, inputs, lock_sources.index_settings, lock_sources.network_settings.ca_bundle, upgrade, sizes
    )
    return tuple(select_package_files(target, resolution).values())


def resolve_git_tree(
    name: str, url: str, ref: str, locked_trees: Iterable[GitTree], upgrade: UpgradeRequest, lock_sources: LockSources
) -> GitTree:
    """Return the tree that `ref` of a repository means now, or the `locked_trees` one that `upgrade` does not move.

    Raises WorkFailed: no place has the repository or the ref.
    """
    for tree in locked_trees:
        if (tree.name, tree.url, tree.ref) == (name, url, ref) and not upgrade.allows(name):
            return tree
    facts = resolve_git_ref(url, ref, lock_sources.locator.list_git_urls(url), lock_sources.network_settings.ca_bundle)
    return GitTree(
        name=name,
        url=url,
        ref=ref,
        commit=facts.commit,
        tree=facts.tree_id,
        sha256=facts.tar_sha256,
        size=facts.tar_bytes,
    )
