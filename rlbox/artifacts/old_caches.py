"""Entries of rlbox's cache folder that were not used for a time, and their removal. All of it can be made again."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rlbox.system.files import cache_path
from rlbox.system.lock import require_unlocked
from rlbox.system.safe_files import remove_tree, walk_files

_NO_CACHE = ("locks", "places", "store")
"""Folders below the cache folder that have their own commands, or are in use."""

_BLOCK = 512
"""Bytes that the kernel counts as one block of a file."""


@dataclass(frozen=True, kw_only=True)
class CacheEntry:
    """One file or folder of a cache; of a file with several links, `size` has the share of one."""

    path: Path
    size: int
    used_at: float


def find_unused_entries(older_s: float) -> list[CacheEntry]:
    """Return the entries that were not used for `older_s` seconds."""
    before = time.time() - older_s
    entries = []
    for cache in _inside(cache_path()):
        for path in _inside(cache) if cache.name not in _NO_CACHE else ():
            with suppress(FileNotFoundError):  # another rlbox has removed it meanwhile
                entries.append(_entry(path))
    return [entry for entry in entries if entry.used_at < before]


def remove_entries(entries: Sequence[CacheEntry]) -> None:
    """Remove cache entries; one that is killed in the middle is still under its name, or gone.

    Raises
    ------
    LockHeld
        Another rlbox builds or installs a target right now, perhaps with one of them; nothing is removed.
    """
    for lock in _inside(cache_path("locks")) if entries else ():
        require_unlocked(lock, "caches")
    for entry in entries:
        gone = entry.path.with_name(f".{entry.path.name}.{os.getpid()}")
        try:
            os.replace(entry.path, gone)
        except FileNotFoundError:
            continue
        remove_tree(gone) if gone.is_dir() and not gone.is_symlink() else gone.unlink()


def _inside(folder: Path) -> Iterable[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _entry(path: Path) -> CacheEntry:
    stats = [path.lstat(), *(row for _, row in walk_files(path, folders=True))]
    size = sum(row.st_blocks * _BLOCK // (1 if stat.S_ISDIR(row.st_mode) else row.st_nlink) for row in stats)
    return CacheEntry(path=path, size=size, used_at=max(map(_used_at, stats)))


def _used_at(row: os.stat_result) -> float:
    """Return when a file was read or written; to list a folder, or to read another link of a file, is no use of it."""
    if stat.S_ISDIR(row.st_mode):
        return row.st_mtime
    return max(row.st_mtime, row.st_atime) if stat.S_ISREG(row.st_mode) and row.st_nlink == 1 else 0.0
