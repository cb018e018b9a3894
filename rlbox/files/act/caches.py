"""What rlbox keeps below its cache folder beside the store: how large each entry is, when it was used, and its removal.

All of it can be made again. Not here: the store, which has its own care; places, in which a target is laid; locks.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rlbox.errors import LockHeld
from rlbox.files.act.folders import cache_folder
from rlbox.files.act.lock import lock_file

KINDS: Mapping[str, str] = {
    "bases": "base images that were fetched by their digest",
    "bootstrap": "base images made from packages of Debian or Ubuntu",
    "checks": "answers of checks of images",
    "compile": "compilers and objects of wheels that were compiled",
    "contexts": "files that builds were given",
    "diagnose": "signatures as they are scanned",
    "images": "descriptions of images",
    "logs": "logs of builds, and of what went wrong in rlbox",
    "mirrors": "times of mirrors",
    "nodes": "images on their way to nodes",
    "plans": "images as they were planned",
    "pushes": "marks of pushes that were cut off",
    "templates": "templates as they are rendered",
}
"""Folder below the cache folder to what lies in it."""

_BLOCK = 512
"""Bytes that the kernel counts as one block of a file."""


@dataclass(frozen=True, kw_only=True)
class CacheEntry:
    """One file or folder of a cache: its bytes on the disk, and when it was last used (Unix time, seconds).

    Of a file with several links each has its share.
    """

    name: str
    size: int
    used_at: float

    @property
    def kind(self) -> str:
        """The cache that it is of."""
        return self.name.partition("/")[0]

    @property
    def path(self) -> Path:
        """Where it lies."""
        return cache_folder(*self.name.split("/"))


def cache_entries() -> list[CacheEntry]:
    """Return every entry, the largest first."""
    found = [_entry(path, f"{kind}/{path.name}") for kind in KINDS for path in _inside(cache_folder(kind))]
    return sorted(found, key=lambda entry: (-entry.size, entry.name))


def remove_entries(entries: list[CacheEntry]) -> None:
    """Remove entries; what is killed in the middle leaves whole ones, or none.

    Raises
    ------
    LockHeld
        Another rlbox builds or compiles right now, perhaps with one of them.
    """
    if held := next(_held(), None):
        raise LockHeld(
            "another rlbox builds with what is cached", where=str(held), next_step="wait for it to end, then repeat"
        )
    for entry in entries:
        gone = entry.path.with_name(f".{entry.path.name}.gone")
        with suppress(FileNotFoundError):
            os.replace(entry.path, gone)
        shutil.rmtree(gone) if gone.is_dir() and not gone.is_symlink() else gone.unlink(missing_ok=True)


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _entry(path: Path, name: str) -> CacheEntry:
    size, used_at = 0, 0.0
    for one in _files(path):
        with suppress(OSError):
            facts = one.lstat()
            alone = stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1
            folder = stat.S_ISDIR(facts.st_mode)
            size += facts.st_blocks * _BLOCK // (1 if folder else facts.st_nlink)
            used_at = max(used_at, facts.st_mtime if alone or folder else 0, facts.st_atime if alone else 0)
            used_at = max(used_at, facts.st_ctime if one == path else 0)  # also changed by a link to it
    return CacheEntry(name=name, size=size, used_at=used_at)


def _files(path: Path) -> Iterator[Path]:
    yield path
    if path.is_dir() and not path.is_symlink():
        for folder, folders, names in os.walk(path):
            yield from (Path(folder, name) for name in (*folders, *names))


def _held() -> Iterator[Path]:
    for path in _inside(cache_folder("locks")):
        with suppress(OSError):
            handle = lock_file(path, create=False)
            if handle is None:
                yield path
            else:
                os.close(handle)
