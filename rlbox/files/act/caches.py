"""What rlbox keeps below its cache folder beside the store: how large each entry is, when it was used, and its removal.

All of it can be made again. Not here: the store, which has its own care; places, in which a target is laid; locks.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rlbox.files.act.folders import cache_folder
from rlbox.files.act.lock import require_free
from rlbox.files.act.trees import remove_tree, walk_files

KINDS: Mapping[str, str] = {
    "bases": "base images that were fetched by their digest",
    "bootstrap": "base images made from packages of Debian or Ubuntu",
    "checks": "answers of checks of images",
    "compile": "compilers and objects of wheels that were compiled",
    "contexts": "files that builds were given",
    "diagnose": "signatures as they are scanned",
    "engines": "proofs that weights of engines can be exchanged",
    "gzip": "what layers of images are when packed by gzip",
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
    found = []
    for kind in KINDS:
        for path in _inside(cache_folder(kind)):
            with suppress(FileNotFoundError):  # another rlbox has removed it meanwhile
                found.append(_entry(path, f"{kind}/{path.name}"))
    return sorted(found, key=lambda entry: (-entry.size, entry.name))


def remove_entries(entries: Sequence[CacheEntry]) -> None:
    """Remove entries; what is killed in the middle leaves whole ones, or none.

    Raises
    ------
    LockHeld
        Another rlbox builds or lays a target right now, perhaps with one of them; nothing is removed.
    """
    for lock in _inside(cache_folder("locks")) if entries else ():
        require_free(lock, "caches")
    for entry in entries:
        gone = entry.path.with_name(f".{entry.path.name}.{os.getpid()}")
        try:
            os.replace(entry.path, gone)
        except FileNotFoundError:
            continue
        remove_tree(gone) if gone.is_dir() and not gone.is_symlink() else gone.unlink()


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _entry(path: Path, name: str) -> CacheEntry:
    own = path.lstat()
    rows = [own, *(facts for _, facts in walk_files(path, folders=True))]
    return CacheEntry(
        name=name,
        size=sum(map(_share, rows)),
        used_at=max(own.st_ctime, *map(_used_at, rows)),  # also changed by a link to it
    )


def _share(facts: os.stat_result) -> int:
    """Return the bytes on the disk that are one link's."""
    return facts.st_blocks * _BLOCK // (1 if stat.S_ISDIR(facts.st_mode) else facts.st_nlink)


def _used_at(facts: os.stat_result) -> float:
    """Return when a file that has no other link was used, or a folder changed: to be listed is no use of it."""
    if stat.S_ISDIR(facts.st_mode):
        return facts.st_mtime
    return max(facts.st_mtime, facts.st_atime) if stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1 else 0.0
