"""Probe the data disk before anything starts: there, writable, roomy enough."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from rlbox.amounts import GIB, asked_text, size_text
from rlbox.app import App
from rlbox.engine.limits import ContainerDefaults
from rlbox.errors import NodeError
from rlbox.files.act.room import free_bytes


def data_folder(host: str, chosen: str | None) -> Path:
    """Return the data disk's directory on this host: `--data`, `RLBOX_DATA`, or `host`, the target's; without links."""
    text = chosen or os.environ.get("RLBOX_DATA") or host
    if not text:
        raise NodeError(
            "no data disk is named", where="disk.host", next_step="give --data DIR, or set RLBOX_DATA or disk.host"
        )
    return Path(os.path.realpath(os.path.expanduser(text)))


def check_disk(app: App, folder: Path, limits: ContainerDefaults, need_gib: float | None = None) -> None:
    """Make a target's data disk where the target says so, and refuse one that will not do.

    Parameters
    ----------
    need_gib
        What must be free, GiB; None: what the target asks for.

    Raises
    ------
    NodeError
        It is missing, no directory, read-only, or has less free.
    """
    with app.checking("data disk"):
        if limits.create and not os.path.lexists(folder):
            _make(app, folder)
        elif not os.path.isdir(folder):
            kind = "is not a directory" if os.path.lexists(folder) else "is missing"
            raise NodeError(
                f"the data disk {kind}",
                where=str(folder),
                next_step="mount it or make it, or name another with --data DIR",
            )
        else:
            _try_write(app, folder)
        _require_room(folder, limits.need_gib if need_gib is None else need_gib)


def _try_write(app: App, folder: Path) -> None:
    try:
        if app.dry_run:
            _require_writable(folder)
            return
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"rlbox")
    except OSError as error:
        raise NodeError(
            f"the data disk cannot be written: {error.strerror}",
            where=str(folder),
            next_step="remount it writable, free space, or name another with --data DIR",
        ) from error


def _require_room(folder: Path, need_gib: float) -> None:
    free = free_bytes(folder) / GIB
    if free < need_gib:
        raise NodeError(
            f"the data disk is too full: {size_text(free * GIB)} free, {asked_text(need_gib)} needed",
            where=str(folder),
            next_step="free space, or name another with --data DIR",
        )


def _make(app: App, folder: Path) -> None:
    try:
        if app.dry_run:
            _require_writable(next(parent for parent in folder.parents if parent.exists()))
            app.dry.first.append(f"the data disk {folder} is made")
            return
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NodeError(
            f"the data disk cannot be made: {error.strerror}",
            where=str(folder),
            next_step="make it, or name another with --data DIR",
        ) from error


def _require_writable(folder: Path) -> None:
    """Raise the `OSError` of a write into a folder, as far as that is known without one."""
    code = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(code, os.strerror(code), str(folder))
