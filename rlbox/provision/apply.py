"""Bring a machine to a target's lock, or lay everything back. A record is written before each change.

Killed at any moment, the same command goes on: what stood at a path is in the record before something of rlbox's takes
its place, each file is put there whole, and an environment that was never finished is created again.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from uv import find_uv_bin

from rlbox.amounts import decimal_size_text
from rlbox.artifacts.object_store import ObjectStore
from rlbox.errors import MachineError, WorkFailed
from rlbox.i18n import _
from rlbox.provision.desired import (
    DesiredState,
    FileOrLinkToInstall,
    GitOrHttpArtifact,
    SkippedItem,
    restore_original_env_file_lines,
)
from rlbox.provision.layout import Layout
from rlbox.provision.plan import (
    ApplyPlan,
    BackupPath,
    InstalledFile,
    InstalledTreeFileOrVenv,
    InstallRecord,
    PathChange,
    PathState,
    compute_patch_manifest_sha256,
    format_venv_fingerprint,
    is_same_kind_content_and_mode,
    make_expected_path_state,
)
from rlbox.provision.probe import (
    FINGERPRINT_FILE,
    find_nearest_existing_dir,
    list_installed_apt_packages_or_empty,
    probe_path,
    read_install_record,
    write_install_record,
)
from rlbox.system.command import run_command, run_command_or_raise
from rlbox.system.files import free_bytes_or_0, is_enospc_or_edquot, write_atomic
from rlbox.values import VENV, Command

_BACKUPS = "backup"
_BEFORE = ".before-rlbox"
_SYNC_S = 7200.0
_APT_S = 1800.0
# A shell of an applied machine has these, and they are about later installs, not about this one.
_NO_CONSTRAINTS = {"UV_CONSTRAINT": "", "PIP_CONSTRAINT": "", "VIRTUAL_ENV": "", "PYTHONPATH": "", "PYTHONHOME": ""}


@dataclass(frozen=True, kw_only=True)
class PackageSource:
    """Where Python packages come from.

    `uv_env` are uv's settings, `wheel_dirs` folders with local wheels. `store_wheel_by_file_name` maps file names to
    the store's objects: all when `is_offline`, and nothing else is asked then, else those that no index has.
    """

    uv_env: Mapping[str, str] = field(default_factory=dict)
    wheel_dirs: tuple[str, ...] = ()
    store_wheel_by_file_name: Mapping[str, Path] = field(default_factory=dict)
    is_offline: bool = False


@dataclass(frozen=True, kw_only=True)
class ApplyOptions:
    sources_profile: str = ""
    offline: bool = False
    apt_opt_out_reason: str = ""
    python_path: str = ""


@dataclass(frozen=True, kw_only=True)
class ApplyResult:
    steps: tuple[PathChange, ...] = ()
    kept_copies: tuple[str, ...] = ()
    skipped: tuple[SkippedItem, ...] = ()


EMPTY_RESULT = ApplyResult()


def apply_plan_steps_skipping_unavailable_apt(
    plan: ApplyPlan,
    store: ObjectStore,
    source: PackageSource,
    options: ApplyOptions,
    before_step: Callable[[PathChange], None],
) -> ApplyResult:
    """Carry out the steps of `plan`, for whose parts the store has the files; after an error the next call goes on."""
    layout, steps, skipped = plan.desired.layout, list(plan.steps), []
    for step in plan.steps:
        if step.kind == "packages" and (error := _download_apt_packages(step.new_description.split())):
            steps.remove(step)  # all else goes on without them
            skipped.append(SkippedItem(_("apt packages {names}").format(names=step.new_description), "apt", error))
    if not steps:
        return ApplyResult(skipped=tuple(skipped))
    record = _record_begin(plan.desired, options)  # whatever is missing has been missed by now
    files = [step for step in steps if step.kind in ("file", "link")]
    for step in (step for step in steps if step not in files):
        before_step(step)
        record = _apply_step(plan, record, step, store, source)
    kept = _install_files(layout, record, files, before_step)
    return ApplyResult(steps=tuple(steps), kept_copies=kept, skipped=tuple(skipped))


def _apply_step(
    plan: ApplyPlan, record: InstallRecord, step: PathChange, store: ObjectStore, source: PackageSource
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
            _apply_patches(plan.desired)
            return _save(layout, replace(record, patches=compute_patch_manifest_sha256(plan.desired) or ""))
        case _:
            return _remove(layout, record, step.path)


def _record_begin(desired: DesiredState, options: ApplyOptions) -> InstallRecord:
    layout = desired.layout
    old = read_install_record(layout) or InstallRecord(target=desired.target, lock=desired.lock, state="laying")
    paths = (layout.record_path, layout.add_prefix(VENV))
    missing = [folder for path in paths for folder in _list_missing_parents_upwards(Path(path))]
    return _save(
        layout,
        replace(
            old,
            target=desired.target,
            lock=desired.lock,
            state="laying",
            prefix=layout.prefix,
            data=layout.data_dir,
            folders=tuple(dict.fromkeys([*old.folders, *missing])),
            python=options.python_path,
        ),
    )


def _save(layout: Layout, record: InstallRecord) -> InstallRecord:
    with _convert_disk_errors(Path(layout.record_path)):
        _remove_temporary_files(Path(layout.record_path))
        write_install_record(layout, record)
    return record


def _install_apt_packages(layout: Layout, record: InstallRecord, names: list[str]) -> InstallRecord:
    before = list_installed_apt_packages_or_empty()
    record = _save(layout, replace(record, packages=tuple(sorted({*record.packages, *(set(names) - before)}))))
    failed = _apt("install", *names)
    new = list_installed_apt_packages_or_empty() - before
    record = _save(layout, replace(record, packages=tuple(sorted({*record.packages, *new}))))
    if failed:
        raise WorkFailed(
            _("apt cannot install {names}: {failed}").format(names=" ".join(names), failed=failed),
            next_step="--no-packages leaves apt alone",
        )
    return record


def _sync_environment(plan: ApplyPlan, record: InstallRecord, step: PathChange, source: PackageSource) -> InstallRecord:
    part = record.environment or InstalledTreeFileOrVenv(
        before=_find_unused_backup_path(Path(step.path)) if step.keeps_backup else ""
    )
    patches = "" if plan.recreates_venv else record.patches
    record = _save(plan.desired.layout, replace(record, environment=part, patches=patches))
    _make_environment(plan.desired, source, part.before, recreate=plan.recreates_venv)
    return record


def _install_part(desired: DesiredState, record: InstallRecord, path: str, store: ObjectStore) -> InstallRecord:
    part = next(part for part in desired.parts if part.install_path == path)
    known = record.parts.get(path)
    before = known.before if known else _find_unused_backup_path(Path(path)) if Path(path).exists() else ""
    folders = (*record.folders, *_list_missing_parents_upwards(Path(path)))
    parts = {**record.parts, path: InstalledTreeFileOrVenv(before=before)}  # no checksum: it is not whole yet
    record = _save(desired.layout, replace(record, parts=parts, folders=tuple(dict.fromkeys(folders))))
    _put_part_in_place(part, store, before)
    return _save(
        desired.layout,
        replace(record, parts={**parts, path: InstalledTreeFileOrVenv(sha256=part.sha256, before=before)}),
    )


def _remove(layout: Layout, record: InstallRecord, path: str) -> InstallRecord:
    if path in record.parts:
        _restore_original_path(Path(path), record.parts[path].before)
        rest = {name: part for name, part in record.parts.items() if name != path}
        return _save(layout, replace(record, parts=rest))
    return _restore_original_file(layout, record, path).record_without_file


def _install_files(
    layout: Layout, record: InstallRecord, steps: Sequence[PathChange], on_step: Callable[[PathChange], None]
) -> tuple[str, ...]:
    known = {*record.kept, *(file.backup for file in record.laid.values())}
    with _convert_disk_errors(Path(layout.rlbox_dir, _BACKUPS)):
        record = _save(layout, _back_up_replaced_files(layout, record, steps))
    for step in steps:
        on_step(step)
        if step.file:
            _install_file(step.file)
    _save(layout, replace(record, state="laid"))
    now = {*record.kept, *(file.backup for file in record.laid.values())}
    return tuple(sorted(now - known - {""}))


def uninstall_and_describe_leftovers(layout: Layout, on_path: Callable[[str], None]) -> tuple[str, ...]:
    """Lay everything back that the record names, the record last; return what could not be, and why."""
    record = read_install_record(layout)
    if record is None:
        return ()
    record = _save(layout, replace(record, state="removing"))
    notes = []
    for path in reversed(tuple(record.laid)):
        on_path(path)
        record, note = _restore_original_file(layout, record, path)
        notes += [note] if note else []
    for path, part in record.parts.items():
        on_path(path)
        _restore_original_path(Path(path), part.before)
    if record.environment:
        on_path(layout.add_prefix(VENV))
        _restore_original_path(Path(layout.add_prefix(VENV)), record.environment.before)
    present = (
        sorted(set(record.packages) & list_installed_apt_packages_or_empty(record.packages)) if record.packages else []
    )
    if present and (failed := _apt("remove", *present)):
        text = _("apt packages {names} were not removed: {failed}")
        notes.append(text.format(names=" ".join(record.packages), failed=failed))
    kept = [path for path in record.kept if Path(path).exists()]
    copy = _("{path}: a copy of what you had written there")
    notes += [copy.format(path=path) for path in kept if path not in " ".join(notes)]
    Path(layout.rlbox_dir, "share/patches.json").unlink(missing_ok=True)
    Path(layout.record_path).unlink(missing_ok=True)
    for folder in sorted([*record.folders, f"{layout.rlbox_dir}/{_BACKUPS}"], key=len, reverse=True):
        with suppress(OSError):
            os.rmdir(folder)
    return tuple(notes)


def _make_environment(desired: DesiredState, source: PackageSource, backup_path: BackupPath, *, recreate: bool) -> None:
    """Make the environment of exactly the locked packages; while that goes on, it has no stamp."""
    layout = desired.layout
    venv, stamp = Path(layout.add_prefix(VENV)), Path(layout.add_prefix(VENV), FINGERPRINT_FILE)
    if recreate or not stamp.exists():
        _move_original_aside_or_remove(venv, backup_path)
        with _convert_disk_errors(venv):
            venv.parent.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    _run_uv(desired, source, venv)
    write_atomic(stamp, format_venv_fingerprint(desired))


def _run_uv(desired: DesiredState, supply: PackageSource, venv: Path) -> None:
    env = {**_NO_CONSTRAINTS, **supply.uv_env, "UV_NO_PROGRESS": "1"}
    offline: tuple[str, ...] = ("--offline",) if supply.is_offline else ()
    python = desired.interpreter or desired.python
    make = (find_uv_bin(), "venv", "--quiet", *offline, "--allow-existing", "--python", python, str(venv))
    next_step = (
        _("install Python {version}, or name it with --python FILE; without --offline uv fetches it from a network")
    ).format(version=desired.python)
    free = decimal_size_text(free_bytes_or_0(venv))
    what = _("uv cannot make an environment with Python {version}").format(version=desired.python)
    run_command_or_raise(Command(argv=make, env=env, timeout_s=_SYNC_S), what, next_step)
    with _requirements(desired, supply) as (words, folder):
        sync = (find_uv_bin(), "pip", "sync", "--quiet", *offline, "--python", str(venv / "bin/python"))
        command = Command(argv=(*sync, "--require-hashes", *words), env=env, cwd=folder, timeout_s=_SYNC_S)
        text = _("uv cannot install the locked packages; {free} are free there")
        run_command_or_raise(command, text.format(free=free))


@contextmanager
def _requirements(desired: DesiredState, supply: PackageSource) -> Iterator[tuple[list[str], str]]:
    with tempfile.TemporaryDirectory(prefix="rlbox-apply-") as folder, _convert_disk_errors(Path(folder)):
        Path(folder, "requirements.txt").write_text(desired.requirements, "utf-8")
        words = ["--no-index"] if supply.is_offline else []
        if desired.build_constraints:
            Path(folder, "build.txt").write_text(desired.build_constraints, "utf-8")
            words += ["--build-constraint", "build.txt"]
        for name, path in supply.store_wheel_by_file_name.items():
            os.symlink(path, Path(folder, name))
        for place in [*([folder] if supply.store_wheel_by_file_name else []), *supply.wheel_dirs]:
            words += ["--find-links", place]
        yield [*words, "requirements.txt"], folder


def _download_apt_packages(names: Sequence[str]) -> str:
    """Bring apt packages here from the machine's own sources; return why apt failed, nothing if it did not."""
    if _apt("--download-only", "install", *names):
        _apt("update")
        return _apt("--download-only", "install", *names)
    return ""


def _apt(*words: str) -> str:
    """Run apt-get without a question; return its last words when it fails, else nothing."""
    options = ("-o", "Dpkg::Options::=--force-confold", "-o", "DPkg::Lock::Timeout=120", "-o", "Acquire::Retries=1")
    argv = ("apt-get", "--quiet", "--yes", "--no-install-recommends", *options, *words)
    done = run_command(Command(argv=argv, env={"DEBIAN_FRONTEND": "noninteractive"}, timeout_s=_APT_S))
    return "" if done.ok else next((x for x in reversed(done.stderr.splitlines()) if x.strip()), "apt-get failed")


def _put_part_in_place(part: GitOrHttpArtifact, store: ObjectStore, backup_path: BackupPath) -> None:
    path, source = Path(part.install_path), store.path(part.sha256)
    draft = path.with_name(f".{path.name}.rlbox")
    with _convert_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _move_original_aside_or_remove(draft, "")
        if part.kind == "http":
            write_atomic(draft, source.read_bytes(), int(part.octal_file_mode, 8))
        else:
            draft.mkdir()
            with tarfile.open(source) as tar:  # rlbox's own archive, by its sha256
                if hasattr(tarfile, "data_filter"):
                    tar.extractall(draft, filter="tar")
                else:
                    tar.extractall(draft)  # noqa: S202
        _move_original_aside_or_remove(path, backup_path)
        os.rename(draft, path)


def _apply_patches(desired: DesiredState) -> None:
    with tempfile.TemporaryDirectory(prefix="rlbox-apply-") as folder, _convert_disk_errors(Path(folder)):
        for name, text in {**desired.patch_programs, "manifest.json": desired.patch_manifest}.items():
            Path(folder, name).write_text(text, "utf-8")
        argv = (sys.executable, f"{folder}/apply_patches.py", f"{folder}/manifest.json")
        root = ("--root", desired.layout.prefix or "/")
        run_command_or_raise(Command(argv=(*argv, *root), timeout_s=600), "a source patch does not fit")


def require_disk_space_for_venv(desired: DesiredState) -> None:
    """Refuse a disk that has no room for the environment; what the wheels unpack to is known roughly."""
    layout = desired.layout
    venv_dir = find_nearest_existing_dir(Path(layout.add_prefix(VENV)))
    free, need = free_bytes_or_0(venv_dir), desired.download_bytes * 2
    if free < need:
        raise MachineError(
            _("the disk is too full for the environment: {free} free, about {need} needed").format(
                free=decimal_size_text(free), need=decimal_size_text(need)
            ),
            where=str(venv_dir),
            next_step=_("free space, or name a folder of another disk with --prefix DIR"),
        )


# ---- files: each whole or not at all, and nothing of the user's lost


def _back_up_file(layout: Layout, path: Path, path_state: PathState) -> str:
    """Copy a file of the user's into the backup folder, under its content; return where (nothing for a link)."""
    if path_state.kind != "file":
        return ""
    copy = Path(layout.rlbox_dir, _BACKUPS, f"{path_state.sha256[:12]}-{path.name}")
    if not copy.exists():
        with _convert_disk_errors(copy):
            _remove_temporary_files(copy)
            write_atomic(copy, path.read_bytes(), int(path_state.mode, 8) & 0o700 | 0o400)
    return str(copy)


def _back_up_replaced_files(layout: Layout, record: InstallRecord, steps: Iterable[PathChange]) -> InstallRecord:
    """Return the record with every file that is about to be laid, and keep copies of what is in their places.

    It is written before the first of them is laid, so that whoever comes after a kill knows what stood there.
    """
    laid, kept, folders = dict(record.laid), list(record.kept), list(record.folders)
    for step in steps:
        if step.file is None:
            continue
        path = Path(step.path)
        folders += _list_missing_parents_upwards(path)
        path_state, own = probe_path(path), laid.get(step.path)
        due = make_expected_path_state(step.file)
        if own is None:
            backup = _back_up_file(layout, path, path_state)
            before = replace(path_state, text=None)
        else:
            backup, before = own.backup, own.before
            if (
                not is_same_kind_content_and_mode(path_state, own.now)
                and not is_same_kind_content_and_mode(path_state, own.before)
                and (copy := _back_up_file(layout, path, path_state))
            ):
                kept.append(copy)  # changed since rlbox laid it
        laid[step.path] = InstalledFile(now=due, before=before, backup=backup, merged=step.file.rlbox_lines)
    return replace(record, laid=laid, kept=tuple(dict.fromkeys(kept)), folders=tuple(dict.fromkeys(folders)))


def _install_file(file: FileOrLinkToInstall) -> None:
    """Put a file or link in its place; readers see what was there, or the whole of it."""
    path = Path(file.path)
    with _convert_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_temporary_files(path)
        if not file.link_target:
            write_atomic(path, file.text.encode("utf-8", "surrogateescape"), int(file.mode, 8))
            return
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        os.symlink(file.link_target, draft)
        os.replace(draft, path)


def _remove_temporary_files(path: Path) -> None:
    for draft in path.parent.glob(f".{path.name}.[0-9]*"):
        draft.unlink(missing_ok=True)


class _RestoredFile(NamedTuple):
    record_without_file: InstallRecord
    problem_note: str


def _restore_original_file(layout: Layout, record: InstallRecord, path: str) -> _RestoredFile:
    """Put back what stood at a path before rlbox laid something there; return the record without it, and a note.

    A file that was changed since it was laid stays as it is, and the note says so; out of one that a platform fills
    too, the lines of rlbox are taken.
    """
    own, place = record.laid[path], Path(path)
    now, note = probe_path(place, include_text=bool(own.merged)), ""
    if is_same_kind_content_and_mode(now, own.now):
        _restore(place, own.before, own.backup)
    elif not is_same_kind_content_and_mode(now, own.before) and own.merged and now.text is not None:
        before = Path(own.backup).read_text("utf-8", "surrogateescape") if own.backup else ""
        text = restore_original_env_file_lines(now.text, own.merged, before)
        write_atomic(place, text.encode("utf-8", "surrogateescape"), int(now.mode, 8))
    elif not is_same_kind_content_and_mode(now, own.before) and now.kind != "absent":
        note = _("{path}: left as it is, because it was changed since")
        if own.backup:
            note = _("{path}: left as it is, because it was changed since; what stood there before is {backup}")
        note = note.format(path=path, backup=own.backup)
    if own.backup and not note:
        Path(own.backup).unlink(missing_ok=True)
    laid = {name: row for name, row in record.laid.items() if name != path}
    kept = (*record.kept, own.backup) if note and own.backup else record.kept
    record = replace(record, laid=laid, kept=kept)
    write_install_record(layout, record)
    return _RestoredFile(record, note)


def _restore(path: Path, before: PathState, backup: str) -> None:
    with _convert_disk_errors(path):
        if before.kind == "file":
            write_atomic(path, Path(backup).read_bytes(), int(before.mode, 8))
            if (before.uid, before.gid) != (os.geteuid(), os.getegid()):
                os.chown(path, before.uid, before.gid)
        elif before.kind == "link":
            _install_file(FileOrLinkToInstall(path=str(path), fix_id_or_rlbox="", link_target=before.to))
        else:
            path.unlink(missing_ok=True)


def _find_unused_backup_path(path: Path) -> str:
    """Return a free name under which what is at `path` is kept while something of rlbox's takes its place."""
    names = (f"{path}{_BEFORE}", *(f"{path}{_BEFORE}-{number}" for number in range(2, 1000)))
    return next(name for name in names if not os.path.lexists(name))


def _move_original_aside_or_remove(path: Path, backup_path: BackupPath) -> None:
    """Make room at `path`: what is the user's goes to `backup_path`, what is rlbox's is removed."""
    with _convert_disk_errors(path):
        if backup_path and not os.path.lexists(backup_path):
            if os.path.lexists(path):
                os.rename(path, backup_path)
        else:
            _remove_path(path)


def _restore_original_path(path: Path, backup_path: BackupPath) -> None:
    with _convert_disk_errors(path):
        if backup_path and not os.path.lexists(backup_path):
            return  # an earlier try has put it back
        _remove_path(path)
        if backup_path:
            os.rename(backup_path, path)


def _remove_path(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _list_missing_parents_upwards(path: Path) -> list[str]:
    return [str(folder) for folder in path.parents if not os.path.lexists(folder)]


@contextmanager
def _convert_disk_errors(path: Path) -> Iterator[None]:
    """Turn a full or read-only disk into an error that says which, and that nothing is half laid."""
    try:
        yield
    except OSError as error:
        full = is_enospc_or_edquot(error)
        raise MachineError(
            _("the disk is full: the files written so far are complete")
            if full
            else _("cannot be laid: {strerror}").format(strerror=error.strerror),
            where=str(path),
            next_step=_("free space and repeat the command, which goes on from there") if full else "",
        ) from error
