"""Make the lock of a target from the one before and its sources, write it, and report what changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from rlbox.app import App, list_rlbox_base_requirements
from rlbox.artifacts.apt_lock import resolve_bootstrapped_base_debs, resolve_debs_onto_stored_image
from rlbox.artifacts.base_image import ensure_base_files_in_store
from rlbox.artifacts.git_tree import hash_git_ref_tree
from rlbox.artifacts.locator import LockSourceSettings, prepare_lock_sources
from rlbox.artifacts.mirrors import (
    list_git_mirror_urls_or_original,
    list_http_mirror_urls_or_original,
    list_image_references_or_original,
)
from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
from rlbox.artifacts.python_lock import (
    PINS,
    ResolverInputs,
    ResolverOutput,
    UpgradeRequest,
    build_python_lock,
    format_pins,
    list_kept_versions_by_purpose,
    plan_stack_runtime_and_build_inputs,
    resolve_packages,
    select_package_files,
)
from rlbox.config.schema import did_you_mean_hint
from rlbox.errors import SpecError, WorkFailed
from rlbox.i18n import _, join
from rlbox.system.files import write_atomic
from rlbox.system.http import NoFullResponseError, create_netrc_client, describe_response_error
from rlbox.target.compiled import COMPILER_WHEELS, Compile
from rlbox.target.lock import (
    CompileInputs,
    Deb,
    GitTree,
    HttpFile,
    Lock,
    LockedPatch,
    Package,
    compute_compile_inputs_sha256,
    compute_lock_spec_checksum,
    load_lock,
    make_locked_patch,
)
from rlbox.target.target import Base, GitSource, HttpSource, Target


def resolve_lock(
    target: Target,
    rlbox_requirements: tuple[str, ...],
    previous_lock: Lock | None,
    upgrade: UpgradeRequest,
    lock_sources: LockSourceSettings,
    patch_texts: Mapping[str, str],
) -> Lock:
    """Return the target's lock; `previous_lock` is kept where the spec still allows it and `upgrade` does not move it.

    `patch_texts`: The target's patches, file name to text.
    Raises WorkFailed: uv or apt finds no solution, or a source does not answer; what they said is quoted.
    """
    resolver = _Resolver(target, previous_lock, upgrade, lock_sources)
    lock = resolver.resolve_python(rlbox_requirements)
    lock = replace(
        lock,
        debs=resolver.resolve_debs(),
        toolchain=resolver.resolve_toolchain(),
        git=tuple(resolver.resolve_git_source(source) for source in target.git),
        http=tuple(resolver.resolve_http_file(source) for source in target.http),
        patches=_hash_patches(target, patch_texts),
    )
    lock = replace(lock, compiled=tuple(resolver.resolve_compile_inputs(lock)))
    return copy_matching_compiled_wheels(lock, previous_lock)


class _Resolver:
    def __init__(
        self, target: Target, previous_lock: Lock | None, upgrade: UpgradeRequest, lock_sources: LockSourceSettings
    ) -> None:
        self._target, self._previous, self._upgrade, self._sources = target, previous_lock, upgrade, lock_sources
        self._ca_bundle = lock_sources.network_settings.ca_bundle
        self._kept = list_kept_versions_by_purpose(previous_lock, upgrade)

    def resolve_python(self, rlbox_requirements: tuple[str, ...]) -> Lock:
        locked = self._previous.list_python_packages() if self._previous else ()
        plan = plan_stack_runtime_and_build_inputs(self._target, rlbox_requirements, self._kept)
        outputs = {inputs.name: self._resolve(inputs, locked) for inputs in plan}
        return build_python_lock(self._target, rlbox_requirements, outputs)

    def _resolve(self, inputs: ResolverInputs, locked: Iterable[Package | GitTree]) -> ResolverOutput:
        sizes = {row.sha256: row.size for row in locked}
        return resolve_packages(
            self._target, inputs, self._sources.index_settings, self._ca_bundle, self._upgrade, sizes
        )

    def resolve_debs(self) -> tuple[Deb, ...]:
        base, platform, urls = self._target.base, self._target.python.platform, self._sources.url_by_apt_archive
        pins = self._kept.get("apt", {})
        if base.bootstrap:
            return resolve_bootstrapped_base_debs(base, platform, urls, pins, self._ca_bundle)
        if not base.packages:
            return ()
        store = ObjectStore(resolve_store_dir(None))
        ensure_base_files_in_store(
            base.image,
            platform,
            store,
            list_image_references_or_original(base.image, self._sources.profile),
            self._ca_bundle,
        )
        return resolve_debs_onto_stored_image(base, platform, store, urls, pins, self._ca_bundle)

    def resolve_toolchain(self) -> tuple[Deb, ...]:
        base = derive_toolchain_base_if_bootstrapped_and_compiling(self._target)
        if base is None:
            return ()
        before = self._previous.toolchain if self._previous else ()
        kept = {deb.name: deb.version for deb in before if not self._upgrade.allows(deb.name)}
        platform, urls = self._target.python.platform, self._sources.url_by_apt_archive
        return resolve_bootstrapped_base_debs(base, platform, urls, kept, self._ca_bundle)

    def resolve_git_source(self, source: GitSource) -> GitTree:
        return self._resolve_git(source.name, source.url, source.ref, self._previous.git if self._previous else ())

    def _resolve_git(self, name: str, url: str, ref: str, locked_trees: Iterable[GitTree]) -> GitTree:
        for tree in locked_trees:
            if (tree.name, tree.url, tree.ref) == (name, url, ref) and not self._upgrade.allows(name):
                return tree
        return hash_git_ref_tree(
            name, url, ref, list_git_mirror_urls_or_original(url, self._sources.profile), self._ca_bundle
        )

    def resolve_http_file(self, source: HttpSource) -> HttpFile:
        for known in self._previous.http if self._previous else ():
            if (known.name, known.url) == (source.name, source.url) and not self._upgrade.allows(source.name):
                return known
        tries = []
        for link in list_http_mirror_urls_or_original(source.url, self._sources.profile):
            digest, size = hashlib.sha256(), 0
            try:
                with (
                    create_netrc_client(self._sources.network_settings) as http,
                    http.stream("GET", link.url) as answer,
                ):
                    if answer.status == 200:
                        for block in answer.iter_bytes():
                            digest.update(block)
                            size += len(block)
                        return HttpFile(name=source.name, url=source.url, sha256=digest.hexdigest(), size=size)
                tries.append(f"\n  {link.mirror}: answered {answer.status}")
            except NoFullResponseError as error:
                tries.append(f"\n  {link.mirror}: {describe_response_error(error)}")
        raise WorkFailed(
            _("{url}: no place has the file{tries}").format(url=source.url, tries="".join(tries)),
            where=f"http.{source.name}",
        )

    def resolve_compile_inputs(self, lock: Lock) -> Iterator[CompileInputs]:
        """Yield what each wheel is compiled from; `lock` has the stack's packages and the toolchain."""
        target, upgrade = self._target, self._upgrade
        previous = {row.name: row for row in self._previous.compiled} if self._previous else {}
        stack = [
            package for group in lock.groups for package in group.packages if package.is_from_python_or_torch_index
        ]
        for group, entry in target.compile_entries:
            name = entry.distribution_name
            row = previous.get(name)
            locked = (row.source, *row.tools) if row else ()
            plan = plan_tool_resolver_inputs(entry, stack, None if upgrade.all_packages else row, upgrade.packages)
            packages = select_package_files(target, self._resolve(plan, locked)).values()
            tools = tuple(sorted(packages, key=lambda package: package.name))
            source: Package | GitTree
            if entry.url:
                trees = [row.source] if row and isinstance(row.source, GitTree) else []
                source = self._resolve_git(name, entry.url, entry.ref, trees)
            else:
                output = self._resolve(plan_inputs_to_find_sdist(entry), locked)
                (source,) = select_package_files(target, output).values()
            digest = compute_compile_inputs_sha256(target, entry, source, tools, lock.toolchain)
            yield CompileInputs(name=name, group=group.name, inputs_sha256=digest, source=source, tools=tools)


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
        files={"tools.in": "".join(f"{line}\n" for line in sorted(roots)), PINS: format_pins(pins)},
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


def derive_toolchain_base_if_bootstrapped_and_compiling(target: Target) -> Base | None:
    """Return the bootstrapped system that a target's wheels are compiled in; None where nothing is, or none is made."""
    if not target.compile_entries or not target.base.bootstrap:
        return None
    named = {package for __, entry in target.compile_entries for package in entry.packages}
    return target.base.model_copy(update={"packages": tuple(sorted({*_TOOLCHAIN, *named}))})


def copy_matching_compiled_wheels(lock: Lock, previous_lock: Lock | None) -> Lock:
    for row in lock.compiled:
        wheel = previous_lock.find_compiled_wheel(row) if previous_lock else None
        if wheel:
            lock = lock.with_compiled_wheel(row, wheel)
    return lock


_MOST_NAMED = 8


@dataclass(frozen=True, kw_only=True)
class LockChange:
    """One thing that two locks say differently; `before` or `after` is empty when one of them lacks it."""

    group: str
    name: str
    before: str
    after: str

    def __str__(self) -> str:
        if not self.before:
            added = _("{group}: {name} {version} was added")
            return added.format(group=self.group, name=self.name, version=self.after)
        if not self.after:
            removed = _("{group}: {name} {version} was removed")
            return removed.format(group=self.group, name=self.name, version=self.before)
        return f"{self.group}: {self.name} {self.before} → {self.after}"


def map_groups_to_image_entries(lock: Lock) -> dict[str, Sequence[Any]]:
    """Return what an image has of a lock, by layer group in its order."""
    python = {group.name: group.packages for group in (lock.runtime, lock.build, *lock.groups)}
    return {"os": lock.debs, **python, "git": lock.git, "http": lock.http, "patches": lock.patches}


def _map_all_entries(lock: Lock) -> dict[str, Sequence[Any]]:
    compiled = [entry for row in lock.compiled for entry in (row.source, *row.tools)]
    return {**map_groups_to_image_entries(lock), "toolchain": lock.toolchain, "compile": compiled}


def get_version_or_commit_or_empty(entry: Any) -> str:
    """Return the version of an entry of a lock: a commit for git, and nothing for a file or a patch."""
    return str(getattr(entry, "version", getattr(entry, "commit", "")))


def list_lock_changes(old_lock: Lock, new_lock: Lock) -> tuple[LockChange, ...]:
    changes = [
        LockChange(group="target", name=key, before=getattr(old_lock, key), after=getattr(new_lock, key))
        for key in ("python", "platform", "base")
        if getattr(old_lock, key) != getattr(new_lock, key)
    ]
    old, new = _map_all_entries(old_lock), _map_all_entries(new_lock)
    for group in dict.fromkeys([*new, *old]):
        olds, news = ({entry.name: entry for entry in entries.get(group, ())} for entries in (old, new))
        for name in sorted({*olds, *news}):
            before, after = olds.get(name), news.get(name)
            if before != after:
                texts = [
                    "" if entry is None else get_version_or_commit_or_empty(entry) or entry.sha256[:12]
                    for entry in (before, after)
                ]
                if texts[0] == texts[1]:  # another file of the same version
                    texts = [entry.sha256[:12] for entry in (before, after) if entry]
                changes.append(LockChange(group=group, name=name, before=texts[0], after=texts[1]))
    return tuple(changes)


def require_identical_lock_text(target: str, previous_lock: Lock | None, lock: Lock) -> None:
    if previous_lock and previous_lock.to_json_text() == lock.to_json_text():
        return
    changes = list_lock_changes(previous_lock, lock) if previous_lock else ()
    names = sorted({change.name for change in changes if change.group != "target"})
    raise WorkFailed(
        _("the lock of target {target} drifted: its sources no longer offer the locked files\n{lock_diff}").format(
            target=target, lock_diff=join("\n", ("  " + str(change) for change in changes))
        ),
        next_step=f"rlbox lock {target} --upgrade {' '.join(names) if len(names) <= _MOST_NAMED else ''}".rstrip(),
    )


def require_known_packages(packages: Sequence[str], previous_lock: Lock | None, lock: Lock) -> None:
    locks = [known for known in (previous_lock, lock) if known]
    found = {entry.name for known in locks for entries in _map_all_entries(known).values() for entry in entries}
    if unknown := sorted(set(packages) - found):
        raise SpecError(
            _("the lock has no package {unknown!r}{near}").format(
                unknown=unknown[0], near=did_you_mean_hint(unknown[0], sorted(found))
            ),
            next_step=f"rlbox show {lock.target}",
        )


def map_groups_to_file_sizes(lock: Lock) -> dict[str, list[int]]:
    """Return the bytes of every file by layer group; groups without files are among them."""
    sizes = {"os": [deb.size for deb in lock.debs]}
    for group in (lock.runtime, lock.build, *lock.groups):
        sizes[group.name] = [package.size for package in group.packages]
    if lock.compiled:
        rows = [row for inputs in lock.compiled for row in (inputs.source, *inputs.tools)]
        sizes["compile"] = list({row.sha256: row.size for row in (*lock.toolchain, *rows)}.values())
    return sizes


def resolve_or_keep_lock_unwritten(
    app: App,
    target: Target,
    upgrade: UpgradeRequest,
    sources_profile: str,
    *,
    lock_fallback_targets: Sequence[str] = (),
    resolve_even_if_unchanged: bool = False,
) -> tuple[Lock | None, Lock]:
    """Return the lock before, None without one, and the lock now, which is not written.

    `sources_profile`: Empty: the target's own.
    `lock_fallback_targets`: The nearest first. A target without a lock of its own goes on from theirs: nothing is
      resolved that its spec leaves as it is.
    `resolve_even_if_unchanged`: Ask the sources even when the spec did not change.
    """
    own = _load_lock_if_readable(app, target.name)
    before = own or _inherited(app, target.name, lock_fallback_targets)
    files = app.project.require_patch_files(target.name, target.patches_folder_file_names)
    patches = {path.name: path.read_text("utf-8") for path in files}
    requirements = list_rlbox_base_requirements()
    if before and not resolve_even_if_unchanged and not (upgrade.all_packages or upgrade.packages):
        checksum = compute_lock_spec_checksum(target, requirements)
        spec = (target.name, target.python.version, target.python.platform, checksum)
        if spec == (before.target, before.python, before.platform, before.spec):  # at most a patch has changed
            return own, replace(before, patches=_hash_patches(target, patches))
    lock_sources = prepare_lock_sources(app, target, sources_profile)
    return own, resolve_lock(target, requirements, before, upgrade, lock_sources, patches)


def _hash_patches(target: Target, patch_texts: Mapping[str, str]) -> tuple[LockedPatch, ...]:
    return tuple(make_locked_patch(file, patch_texts[file]) for file in target.patches_folder_file_names)


def _load_lock_if_readable(app: App, name: str) -> Lock | None:
    try:
        return load_lock(app.project.own_or_shipped_lock_file(name))
    except SpecError as error:
        app.print_status(_("{what}; it is created again").format(what=error.what))
        return None


def _inherited(app: App, name: str, includes: Sequence[str]) -> Lock | None:
    for included in includes:
        if lock := _load_lock_if_readable(app, included):
            app.print_status(
                _("{name} has no lock yet: it begins with that of {included}, which it includes").format(
                    name=name, included=included
                )
            )
            return replace(lock, target=name)
    return None


def write_and_report_lock(app: App, previous_lock: Lock | None, lock: Lock) -> bool:
    path, text = app.project.own_lock_file_to_write(lock.target), lock.to_json_text()
    changed = not path.is_file() or path.read_text("utf-8") != text
    if changed and not app.dry_run:
        write_atomic(path, text)
    for change in list_lock_changes(previous_lock, lock) if previous_lock else ():
        app.print_status(str(change))
    if sdists := [package.file for package in lock.list_python_packages() if not package.is_wheel]:
        app.print_status(
            _("no wheel for {platform}, built from source in every image: {names}").format(
                platform=lock.platform, names=", ".join(sdists)
            )
        )
    return changed
