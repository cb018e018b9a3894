"""Probe the data disk before anything starts: there, writable, roomy enough."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from rlbox.amounts import GIB, size_text
from rlbox.engine.limits import ContainerDefaults
from rlbox.errors import NodeError
from rlbox.files.act.room import free_bytes


def data_folder(limits: ContainerDefaults, chosen: str | None) -> Path:
    """Return the data disk's directory on this host: `--data`, `RLBOX_DATA`, or the target's own; without links."""
    text = chosen or os.environ.get("RLBOX_DATA") or limits.host
    if not text:
        raise NodeError(
            "no data disk is named", where="disk.host", next_step="give --data DIR, or set RLBOX_DATA or disk.host"
        )
    return Path(os.path.realpath(os.path.expanduser(text)))


def check_disk(folder: Path, limits: ContainerDefaults, need_gib: float | None = None) -> float:
    """Return the free space of a target's data disk in GiB.

    Parameters
    ----------
    need_gib
        What must be free; None: what the target asks for.

    Raises
    ------
    NodeError
        It is missing, no directory, read-only, or has less free.
    """
    need_gib = limits.need_gib if need_gib is None else need_gib
    if limits.create and not os.path.lexists(folder):
        _make(folder)
    if not os.path.isdir(folder):
        kind = "is not a directory" if os.path.lexists(folder) else "is missing"
        raise NodeError(
            f"the data disk {kind}", where=str(folder), next_step="mount it or make it, or name another with --data DIR"
        )
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"rlbox")
    except OSError as error:
        raise NodeError(
            f"the data disk cannot be written: {error.strerror}",
            where=str(folder),
            next_step="remount it writable, free space, or name another with --data DIR",
        ) from error
    free = free_bytes(folder) / GIB
    if free < need_gib:
        raise NodeError(
            f"the data disk is too full: {size_text(free * GIB)} free, "
            f"{size_text(need_gib * GIB)} ({need_gib:g} GiB) needed",
            where=str(folder),
            next_step="free space, or name another with --data DIR",
        )
    return free


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NodeError(
            f"the data disk cannot be made: {error.strerror}",
            where=str(folder),
            next_step="make it, or name another with --data DIR",
        ) from error
