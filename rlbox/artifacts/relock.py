"""Make the lock of a target from the one before and its sources, write it, and report what changed."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from rlbox.app import App, own_requirements
from rlbox.artifacts.apt_lock import resolve_bootstrap_debs, resolve_debs_onto_stored_image
from rlbox.artifacts.base_image import fetch_base_files
from rlbox.artifacts.compiled_lock import keep_matching_compiled_wheels, resolve_compiled_inputs, resolve_git_tree
from rlbox.artifacts.python_lock import (
    UpgradeRequest,
    build_python_lock,
    list_kept_versions,
    plan_resolver_inputs,
    resolve_packages,
)
from rlbox.artifacts.source_selection import LockSources, prepare_lock_sources
from rlbox.errors import SpecError, WorkFailed
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.files import write_atomic
from rlbox.system.http import NoResponseError, create_client, explain_no_response
from rlbox.target.lock import Deb, GitTree, HttpFile, Lock, compute_lock_spec_checksum, hash_locked_patch, load_lock
from rlbox.target.target import GitSource, HttpSource, Target


def resolve_lock(
    target: Target,
    rlbox_requirements: tuple[str, ...],
    previous_lock: Lock | None,
    upgrade: UpgradeRequest,
    lock_sources: LockSources,
    patch_texts: Mapping[str, str],
) -> Lock:
    """Return the target's lock; `previous_lock` is kept where the spec still allows it and `upgrade` does not move it.

    `patch_texts`: The target's patches, file name to text.
    Raises WorkFailed: uv or apt finds no solution, or a source does not answer; what they said is quoted.
    """
    kept = list_kept_versions(previous_lock, upgrade)
    sizes = {package.sha256: package.size for package in previous_lock.list_packages()} if previous_lock else {}
    resolved = {
        inputs.name: resolve_packages(
            target, inputs, lock_sources.index_settings, lock_sources.network_settings.ca_bundle, upgrade, sizes
        )
        for inputs in plan_resolver_inputs(target, rlbox_requirements, kept)
    }
    planned = build_python_lock(target, rlbox_requirements, resolved)
    toolchain, compiled = resolve_compiled_inputs(target, planned, previous_lock, upgrade, lock_sources)
    lock = replace(
        planned,
        debs=_debs(target, kept.get("apt", {}), lock_sources),
        toolchain=toolchain,
        compiled=compiled,
        git=tuple(_git(source, previous_lock, upgrade, lock_sources) for source in target.git),
        http=tuple(_http(source, previous_lock, upgrade, lock_sources) for source in target.http),
        patches=tuple(hash_locked_patch(file, patch_texts[file]) for file in target.own_patches),
    )
    return keep_matching_compiled_wheels(lock, previous_lock)


def _refresh_lock_patches(
    target: Target, rlbox_requirements: tuple[str, ...], lock: Lock, patch_texts: Mapping[str, str]
) -> Lock | None:
    """Return the lock with its patches as they are now, or None when the spec wants more than that."""
    made_for = (lock.target, lock.python, lock.platform, lock.spec)
    if made_for != (
        target.name,
        target.python.version,
        target.python.platform,
        compute_lock_spec_checksum(target, rlbox_requirements),
    ):
        return None
    return replace(lock, patches=tuple(hash_locked_patch(file, patch_texts[file]) for file in target.own_patches))


def _debs(target: Target, pins: Mapping[str, str], lock_sources: LockSources) -> tuple[Deb, ...]:
    base, platform, ca_bundle = target.base, target.python.platform, lock_sources.network_settings.ca_bundle
    if base.bootstrap:
        return resolve_bootstrap_debs(base, platform, lock_sources.url_by_apt_archive, pins, ca_bundle)
    if not base.packages:
        return ()
    fetch_base_files(base.image, platform, lock_sources.store, lock_sources.base_image_urls, ca_bundle)
    return resolve_debs_onto_stored_image(
        base, platform, lock_sources.store, lock_sources.url_by_apt_archive, pins, ca_bundle
    )


def _git(source: GitSource, before: Lock | None, upgrade: UpgradeRequest, lock_sources: LockSources) -> GitTree:
    return resolve_git_tree(source.name, source.url, source.ref, before.git if before else (), upgrade, lock_sources)


def _http(source: HttpSource, before: Lock | None, upgrade: UpgradeRequest, lock_sources: LockSources) -> HttpFile:
    for known in before.http if before else ():
        if (known.name, known.url) == (source.name, source.url) and not upgrade.allows(source.name):
            return known
    tries = []
    for link in lock_sources.locator.list_http_urls(source.url):
        digest, size = hashlib.sha256(), 0
        try:
            with create_client(lock_sources.network_settings) as http, http.stream("GET", link.url) as answer:
                if answer.status == 200:
                    for block in answer.iter_bytes():
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


_MOST_NAMED = 8


def require_identical_lock_text(target: str, previous_lock: Lock | None, lock: Lock) -> None:
    if previous_lock is None or previous_lock.to_json_text() != lock.to_json_text():
        raise WorkFailed(
            _("the lock of target {target} drifted: its sources no longer offer the locked files\n{lock_diff}").format(
                target=target,
                lock_diff=_format_lock_diff(previous_lock.to_json_text() if previous_lock else "", lock.to_json_text()),
            ),
            next_step=f"rlbox lock {target} --upgrade {_drifted(previous_lock, lock)}".rstrip(),
        )


def _drifted(before: Lock | None, lock: Lock) -> str:
    """Return the names of what is not as before, which a lock that fits its spec keeps; nothing for all of it."""
    old, new = (set(_rows(one.to_json_text())) if one else set() for one in (before, lock))
    names = sorted(
        {name for name, *__ in old ^ new}
        & {*lock.list_all_entry_names(), *(before.list_all_entry_names() if before else ())}
    )
    return " ".join(names) if len(names) <= _MOST_NAMED else ""


def require_known_packages(packages: Sequence[str], previous_lock: Lock | None, lock: Lock) -> None:
    found = {name for known in (previous_lock, lock) if known for name in known.list_all_entry_names()}
    if unknown := sorted(set(packages) - found):
        near = difflib.get_close_matches(unknown[0], found, n=1)
        raise SpecError(
            _("the lock has no package {unknown!r}{near}").format(
                unknown=unknown[0], near=_(" (did you mean {near!r}?)").format(near=near[0]) if near else ""
            ),
            next_step=f"rlbox show {lock.target}",
        )


def _rows(text: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a lock that are about something with a name, each behind that name."""
    for line in text.split("\n"):
        row = line.strip().rstrip(",")
        if row.startswith('{"name"') and row.endswith("}"):
            yield str(parse_json(row)["name"]), row


def _format_lock_diff(old_lock: str, new_lock: str) -> str:
    """Return what changed, a line a file of the lock: its name, its version, the beginning of its sha256."""

    def short(text: str) -> list[str]:
        lines = []
        for line in text.split("\n"):
            row = line.strip().rstrip(",")
            data = parse_json(row) if row.startswith('{"name"') and row.endswith("}") else {}
            words = (data["name"], data.get("version", ""), data["sha256"][:12]) if "sha256" in data else (row,)
            lines.append(" ".join(word for word in words if word))
        return lines

    rows = difflib.unified_diff(short(old_lock), short(new_lock), "lock.json", "lock.json (now)", lineterm="", n=0)
    return "\n".join(line for line in rows if not line.startswith("@@"))


def count_group_packages(lock: Lock) -> dict[str, int]:
    """Return how many packages each group has; groups of the stack only where they have some."""
    counts = {"os": len(lock.debs), "runtime": len(lock.runtime.packages)}
    counts |= {group.name: len(group.packages) for group in (lock.build, *lock.groups) if group.packages}
    return counts | ({"compile": len(_compile_sizes(lock))} if lock.compiled else {})


def sum_group_bytes(lock: Lock) -> dict[str, int]:
    groups = (lock.runtime, lock.build, *lock.groups)
    return {
        "os": sum(deb.size for deb in lock.debs),
        **{group.name: sum(package.size for package in group.packages) for group in groups},
    } | ({"compile": sum(_compile_sizes(lock).values())} if lock.compiled else {})


def _compile_sizes(lock: Lock) -> dict[str, int]:
    rows = [row for one in lock.compiled for row in (one.source, *one.tools)]
    return {row.sha256: row.size for row in (*lock.toolchain, *rows)}


class LockUpdate(NamedTuple):
    """The lock before, None without one, and the lock now."""

    previous: Lock | None
    current: Lock


def resolve_or_keep_lock_unwritten(
    app: App,
    target: Target,
    upgrade: UpgradeRequest,
    sources_profile: str,
    *,
    included_targets: Sequence[str] = (),
    resolve_even_if_unchanged: bool = False,
) -> LockUpdate:
    """Return the lock before and the lock now, which is not written.

    `sources_profile`: Empty: the target's own.
    `included_targets`: The nearest first. A target without a lock of its own goes on from theirs: nothing is resolved
      that its spec leaves as it is.
    `resolve_even_if_unchanged`: Ask the sources even when the spec did not change.
    """
    own = _before(app, target.name)
    before = own or _inherited(app, target.name, included_targets)
    files = app.project.require_patch_files(target.name, target.own_patches)
    patches = {path.name: path.read_text("utf-8") for path in files}
    if before and not resolve_even_if_unchanged and not (upgrade.all_packages or upgrade.packages):
        refreshed = _refresh_lock_patches(target, own_requirements(), before, patches)
        if refreshed:
            return LockUpdate(own, refreshed)
    lock_sources = prepare_lock_sources(app, target, sources_profile)
    return LockUpdate(own, resolve_lock(target, own_requirements(), before, upgrade, lock_sources, patches))


def _before(app: App, name: str) -> Lock | None:
    try:
        return load_lock(app.project.own_or_shipped_lock_file(name))
    except SpecError as error:
        app.print_status(f"{error.what}; it is made anew")
        return None


def _inherited(app: App, name: str, includes: Sequence[str]) -> Lock | None:
    for included in includes:
        if lock := _before(app, included):
            app.print_status(f"{name} has no lock yet: it begins with that of {included}, which it includes")
            return replace(lock, target=name)
    return None


def write_and_report_lock(app: App, previous_lock: Lock | None, lock: Lock) -> bool:
    """Write the lock, unless it is a dry run, and say what changed; return whether something did."""
    changed = previous_lock is None or previous_lock.to_json_text() != lock.to_json_text()
    if not app.dry_run:
        path, text = app.project.own_lock_file_to_write(lock.target), lock.to_json_text()
        if not path.is_file() or path.read_text("utf-8") != text:
            write_atomic(path, text)
            changed = True
    if previous_lock and previous_lock.to_json_text() != lock.to_json_text():
        app.print_status(_format_lock_diff(previous_lock.to_json_text(), lock.to_json_text()))
    if sdists := [package.file for package in lock.list_packages() if not package.is_wheel]:
        app.print_status(f"no wheel for {lock.platform}, built from source in every image: {', '.join(sdists)}")
    return changed
