"""Bring a machine to a target's lock, or lay everything back. A record is written before each change.

Killed at any moment, the same command goes on: what stood at a path is in the record before something of rlbox's takes
its place, each file is put there whole, and an environment that was never finished is made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rlbox.artifacts.object_store import ObjectStore
from rlbox.errors import WorkFailed
from rlbox.i18n import _
from rlbox.provision.desired import DesiredState, SkippedItem
from rlbox.provision.files import (
    BACKUPS,
    back_up_replaced_files,
    convert_disk_errors,
    find_unused_backup_path,
    install_file,
    list_missing_parents_upwards,
    remove_empty_directories,
    remove_path,
    remove_temporary_files,
    restore_original_file,
    restore_original_path,
)
from rlbox.provision.install import (
    PackageSource,
    apply_patches,
    download_apt_packages,
    install_apt_packages,
    install_git_or_http_part,
    remove_apt_packages,
    require_disk_space,
    sync_environment,
)
from rlbox.provision.layout import Layout
from rlbox.provision.plan import ApplyPlan, InstalledPart, InstallRecord, PathChange, compute_patch_manifest_sha256
from rlbox.provision.probe import find_existing_parent, list_installed_apt_packages, read_record, write_record
from rlbox.values import VENV


@dataclass(frozen=True, kw_only=True)
class ApplyOptions:
    """What the command line asked for; `overridden_stack_conflict` is what `--force` overrides."""

    sources_profile: str = ""
    offline: bool = False
    install_apt_packages: bool = True
    python_path: str = ""
    accepted_version_by_package: Mapping[str, str] = field(default_factory=dict)
    overridden_stack_conflict: str = ""

    @property
    def apt_opt_out_reason(self) -> str:
        """Why apt is left alone; empty when it need not be."""
        return "" if self.install_apt_packages else "--no-packages was given"


@dataclass(frozen=True, kw_only=True)
class Supplies:
    """Where things come from: Python packages (asked for when they are needed), the store, the patching programs.

    `fetch_parts` brings git trees and files into the store.
    """

    get_packages: Callable[[], PackageSource]
    store: ObjectStore
    fetch_parts: Callable[[], None]
    patcher_source_by_file_name: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ApplyResult:
    """What was done: the steps, copies of the user's files that were kept, what could not be done and why."""

    steps: tuple[PathChange, ...] = ()
    kept_copies: tuple[str, ...] = ()
    skipped: tuple[SkippedItem, ...] = ()

    def merge(self, other: ApplyResult) -> ApplyResult:
        """Return what was done when `other` came after it."""
        return ApplyResult(
            steps=(*self.steps, *other.steps),
            kept_copies=(*self.kept_copies, *other.kept_copies),
            skipped=(*self.skipped, *other.skipped),
        )


EMPTY_RESULT = ApplyResult()


def apply_plan_steps(
    plan: ApplyPlan, supplies: Supplies, options: ApplyOptions, before_step: Callable[[PathChange], None]
) -> ApplyResult:
    """Carry out the steps of `plan` in their order; `before_step` is called before each.

    Raises
    ------
    WorkFailed, NodeError
        Something cannot be had, or the disk is full. What was done stays, and the next call goes on from there.
    """
    desired, layout, steps = plan.desired, plan.desired.layout, plan.steps
    skipped = tuple(_download_apt_packages(plan))
    if skipped:
        steps = tuple(step for step in steps if step.kind != "packages")
    if not steps:
        return ApplyResult(skipped=skipped)
    source = PackageSource()
    if "environment" in plan.step_kinds:
        require_disk_space(desired, find_existing_parent(Path(layout.relocated_venv_dir or layout.map_path(VENV))))
        source = supplies.get_packages()
    if "part" in plan.step_kinds:
        supplies.fetch_parts()
    record = _record_begin(desired, options)  # whatever is missing has been missed by now
    files = [step for step in steps if step.kind in ("file", "link")]
    for step in (step for step in steps if step not in files):
        before_step(step)
        record = _apply_step(plan, record, step, supplies.store, source, supplies.patcher_source_by_file_name)
    kept = _install_files(layout, record, files, before_step)
    return ApplyResult(steps=steps, kept_copies=kept, skipped=skipped)


def _apply_step(
    plan: ApplyPlan,
    record: InstallRecord,
    step: PathChange,
    store: ObjectStore,
    source: PackageSource,
    patch_scripts: Mapping[str, str],
) -> InstallRecord:
    layout = plan.desired.layout
    match step.kind:
        case "packages":
            return _install_apt_packages(layout, record, step.new_description.split())
        case "environment":
            return _sync_environment(plan, record, step, source)
        case "part":
            return _install_part(plan.desired, record, step.path, store)
        case "patches":
            apply_patches(plan.desired, patch_scripts)
            return _save(layout, replace(record, patches=compute_patch_manifest_sha256(plan.desired) or ""))
        case _:
            return _remove(layout, record, step.path)


def _download_apt_packages(plan: ApplyPlan) -> Iterator[SkippedItem]:
    """Bring the apt packages here, and yield those that cannot be had: all else goes on without them."""
    for step in plan.steps:
        if step.kind == "packages" and (error := download_apt_packages(step.new_description.split())):
            yield SkippedItem(item=f"apt packages {step.new_description}", source_id="apt", reason=error)


def _record_begin(desired: DesiredState, options: ApplyOptions) -> InstallRecord:
    """Write that a change has begun, and of which folders of ours there were none."""
    layout = desired.layout
    old = read_record(layout) or InstallRecord(target=desired.target, lock=desired.lock, state="laying")
    missing = [
        folder
        for path in (
            layout.record_file,
            layout.map_path(VENV),
            *([layout.relocated_venv_dir] if layout.relocated_venv_dir else []),
        )
        for folder in list_missing_parents_upwards(Path(path))
    ]
    return _save(
        layout,
        replace(
            old,
            target=desired.target,
            lock=desired.lock,
            state="laying",
            prefix=layout.prefix,
            data=layout.data_dir,
            venv=layout.relocated_venv_dir,
            folders=tuple(dict.fromkeys([*old.folders, *missing])),
            python=options.python_path,
            accepted=dict(options.accepted_version_by_package),
            forced=options.overridden_stack_conflict,
        ),
    )


def _save(layout: Layout, record: InstallRecord) -> InstallRecord:
    with convert_disk_errors(Path(layout.record_file)):
        remove_temporary_files(Path(layout.record_file))
        write_record(layout, record)
    return record


def _install_apt_packages(layout: Layout, record: InstallRecord, names: list[str]) -> InstallRecord:
    before = list_installed_apt_packages()
    due = {*record.packages, *(set(names) - before)}
    record = _save(layout, replace(record, packages=tuple(sorted(due))))
    result = install_apt_packages(names)
    record = _save(layout, replace(record, packages=tuple(sorted({*record.packages, *result.new_packages}))))
    if result.error:
        raise WorkFailed(
            _("apt cannot install {names}: {failed}").format(names=" ".join(names), failed=result.error),
            next_step="--no-packages leaves apt alone",
        )
    return record


def _sync_environment(plan: ApplyPlan, record: InstallRecord, step: PathChange, source: PackageSource) -> InstallRecord:
    part = record.environment or InstalledPart(
        before=find_unused_backup_path(Path(step.path)) if step.keeps_backup else ""
    )
    patches = "" if plan.recreates_venv else record.patches
    record = _save(plan.desired.layout, replace(record, environment=part, patches=patches))
    sync_environment(plan.desired, source, part.before, recreate=plan.recreates_venv)
    return record


def _install_part(desired: DesiredState, record: InstallRecord, path: str, store: ObjectStore) -> InstallRecord:
    part = next(part for part in desired.parts if part.install_path == path)
    known = record.parts.get(path)
    before = known.before if known else find_unused_backup_path(Path(path)) if Path(path).exists() else ""
    folders = (*record.folders, *list_missing_parents_upwards(Path(path)))
    parts = {**record.parts, path: InstalledPart(before=before)}  # no checksum: it is not whole yet
    record = _save(desired.layout, replace(record, parts=parts, folders=tuple(dict.fromkeys(folders))))
    install_git_or_http_part(part, store, before)
    return _save(
        desired.layout, replace(record, parts={**parts, path: InstalledPart(sha256=part.sha256, before=before)})
    )


def _remove(layout: Layout, record: InstallRecord, path: str) -> InstallRecord:
    if path in record.parts:
        restore_original_path(Path(path), record.parts[path].before)
        rest = {name: part for name, part in record.parts.items() if name != path}
        return _save(layout, replace(record, parts=rest))
    return restore_original_file(layout, record, path).record_without_file


def _install_files(
    layout: Layout, record: InstallRecord, steps: Sequence[PathChange], on_step: Callable[[PathChange], None]
) -> tuple[str, ...]:
    """Lay the files, and write that all is laid; return copies that were kept of what was there."""
    known = {*record.kept, *(file.backup for file in record.laid.values())}
    with convert_disk_errors(Path(layout.rlbox_dir, BACKUPS)):
        record = _save(layout, back_up_replaced_files(layout, record, steps))
    for step in steps:
        on_step(step)
        if step.file:
            install_file(step.file)
    _save(layout, replace(record, state="laid"))
    now = {*record.kept, *(file.backup for file in record.laid.values())}
    return tuple(sorted(now - known - {""}))


def uninstall(layout: Layout, on_path: Callable[[str], None]) -> tuple[str, ...]:
    """Lay everything back that the record names, the record last; return what could not be, and why."""
    record = read_record(layout)
    if record is None:
        return ()
    record = _save(layout, replace(record, state="removing"))
    notes = []
    for path in reversed(tuple(record.laid)):
        on_path(path)
        record, note = restore_original_file(layout, record, path)
        notes += [note] if note else []
    for path, part in record.parts.items():
        on_path(path)
        restore_original_path(Path(path), part.before)
    if record.environment:
        on_path(layout.map_path(VENV))
        restore_original_path(Path(layout.map_path(VENV)), record.environment.before)
        if record.venv:
            remove_path(Path(record.venv))
            remove_path(Path(record.venv).with_name("uv-cache"))
    if record.packages and (failed := remove_apt_packages(record.packages)):
        notes.append(f"apt packages {' '.join(record.packages)} were not removed: {failed}")
    kept = [path for path in record.kept if Path(path).exists()]
    notes += [f"{path}: a copy of what you had written there" for path in kept if path not in " ".join(notes)]
    Path(layout.rlbox_dir, "share/patches.json").unlink(missing_ok=True)
    Path(layout.record_file).unlink(missing_ok=True)
    remove_empty_directories([*record.folders, f"{layout.rlbox_dir}/{BACKUPS}"])
    return tuple(notes)
