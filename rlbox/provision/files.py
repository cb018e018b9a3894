"""Lay files and links on a machine and take them away again: each whole or not at all, nothing of the user's lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rlbox.errors import NodeError
from rlbox.i18n import _
from rlbox.provision.desired import FileToInstall, remove_env_file_variables
from rlbox.provision.layout import Layout
from rlbox.provision.plan import (
    BackupPath,
    InstalledFile,
    InstallRecord,
    PathChange,
    PathState,
    is_same_content,
    make_installed_state,
)
from rlbox.provision.probe import probe_path, write_record
from rlbox.system.files import is_disk_full, write_atomic

BACKUPS = "backup"
_BEFORE = ".before-rlbox"


def _back_up_file(layout: Layout, path: Path, path_state: PathState) -> str:
    """Copy a file of the user's into the backup folder, under its content; return where (nothing for a link)."""
    if path_state.kind != "file":
        return ""
    copy = Path(layout.rlbox_dir, BACKUPS, f"{path_state.sha256[:12]}-{path.name}")
    if not copy.exists():
        with convert_disk_errors(copy):
            remove_temporary_files(copy)
            write_atomic(copy, path.read_bytes(), int(path_state.mode, 8) & 0o700 | 0o400)
    return str(copy)


def back_up_replaced_files(layout: Layout, record: InstallRecord, steps: Iterable[PathChange]) -> InstallRecord:
    """Return the record with every file that is about to be laid, and keep copies of what is in their places.

    It is written before the first of them is laid, so that whoever comes after a kill knows what stood there.
    """
    laid, kept, folders = dict(record.laid), list(record.kept), list(record.folders)
    for step in steps:
        if step.file is None:
            continue
        path = Path(step.path)
        folders += list_missing_parents_upwards(path)
        path_state, own = probe_path(path), laid.get(step.path)
        due = make_installed_state(step.file)
        if own is None:
            backup = _back_up_file(layout, path, path_state)
            before = replace(path_state, text=None)
        else:
            backup, before = own.backup, own.before
            if (
                not is_same_content(path_state, own.now)
                and not is_same_content(path_state, own.before)
                and (copy := _back_up_file(layout, path, path_state))
            ):
                kept.append(copy)  # changed since rlbox laid it
        laid[step.path] = InstalledFile(now=due, before=before, backup=backup, merged=step.file.rlbox_lines)
    return replace(record, laid=laid, kept=tuple(dict.fromkeys(kept)), folders=tuple(dict.fromkeys(folders)))


def install_file(file: FileToInstall) -> None:
    """Put a file or link in its place; readers see what was there, or the whole of it."""
    path = Path(file.path)
    with convert_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_temporary_files(path)
        if not file.link_target:
            write_atomic(path, file.text.encode("utf-8", "surrogateescape"), int(file.mode, 8))
            return
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        os.symlink(file.link_target, draft)
        os.replace(draft, path)


def remove_temporary_files(path: Path) -> None:
    """Remove what a killed process was about to put at `path`."""
    for draft in path.parent.glob(f".{path.name}.[0-9]*"):
        draft.unlink(missing_ok=True)


class RestoredFile(NamedTuple):
    """The record without the file, and what is to say of it; empty: nothing."""

    record_without_file: InstallRecord
    problem_note: str


def restore_original_file(layout: Layout, record: InstallRecord, path: str) -> RestoredFile:
    """Put back what stood at a path before rlbox laid something there; return the record without it, and a note.

    A file that was changed since it was laid stays as it is, and the note says so; out of one that a platform fills
    too, the lines of rlbox are taken.
    """
    own, place = record.laid[path], Path(path)
    now, note = probe_path(place, text=bool(own.merged)), ""
    if is_same_content(now, own.now):
        _restore(place, own.before, own.backup)
    elif not is_same_content(now, own.before) and own.merged and now.text is not None:
        before = Path(own.backup).read_text("utf-8", "surrogateescape") if own.backup else ""
        text = remove_env_file_variables(now.text, own.merged, before)
        write_atomic(place, text.encode("utf-8", "surrogateescape"), int(now.mode, 8))
    elif not is_same_content(now, own.before) and now.kind != "absent":
        note = f"{path}: left as it is, because it was changed since" + (
            f"; what stood there before is {own.backup}" if own.backup else ""
        )
    if own.backup and not note:
        Path(own.backup).unlink(missing_ok=True)
    laid = {name: row for name, row in record.laid.items() if name != path}
    kept = (*record.kept, own.backup) if note and own.backup else record.kept
    record = replace(record, laid=laid, kept=kept)
    write_record(layout, record)
    return RestoredFile(record, note)


def _restore(path: Path, before: PathState, backup: str) -> None:
    with convert_disk_errors(path):
        if before.kind == "file":
            write_atomic(path, Path(backup).read_bytes(), int(before.mode, 8))
            if (before.uid, before.gid) != (os.geteuid(), os.getegid()):
                os.chown(path, before.uid, before.gid)
        elif before.kind == "link":
            install_file(FileToInstall(path=str(path), fix_id_or_rlbox="", link_target=before.to))
        else:
            path.unlink(missing_ok=True)


def find_unused_backup_path(path: Path) -> str:
    """Return a free name under which what is at `path` is kept while something of rlbox's takes its place."""
    names = (f"{path}{_BEFORE}", *(f"{path}{_BEFORE}-{number}" for number in range(2, 1000)))
    return next(name for name in names if not os.path.lexists(name))


def move_original_aside_or_remove(path: Path, backup_path: BackupPath) -> None:
    """Make room at `path`: what is the user's goes to `backup_path`, what is rlbox's is removed."""
    with convert_disk_errors(path):
        if backup_path and not os.path.lexists(backup_path):
            if os.path.lexists(path):
                os.rename(path, backup_path)
        else:
            remove_path(path)


def restore_original_path(path: Path, backup_path: BackupPath) -> None:
    with convert_disk_errors(path):
        if backup_path and not os.path.lexists(backup_path):
            return  # an earlier try has put it back
        remove_path(path)
        if backup_path:
            os.rename(backup_path, path)


def remove_path(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def list_missing_parents_upwards(path: Path) -> list[str]:
    return [str(folder) for folder in path.parents if not os.path.lexists(folder)]


def remove_empty_directories(directories: Iterable[str]) -> None:
    for folder in sorted(directories, key=len, reverse=True):
        with suppress(OSError):
            os.rmdir(folder)


@contextmanager
def convert_disk_errors(path: Path) -> Iterator[None]:
    """Turn a full or read-only disk into an error that says which, and that nothing is half laid."""
    try:
        yield
    except OSError as error:
        full = is_disk_full(error)
        raise NodeError(
            _("the disk is full: the files written so far are complete")
            if full
            else _("cannot be laid: {strerror}").format(strerror=error.strerror),
            where=str(path),
            next_step=_("free space and repeat the command, which goes on from there") if full else "",
        ) from error
