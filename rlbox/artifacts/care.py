"""Care for a store: verify every object by its sum, remove what no lock uses."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rlbox.artifacts.names import known_locks
from rlbox.artifacts.objects import Store
from rlbox.system.files import sha256_file
from rlbox.system.lock import open_locked_file


@dataclass(frozen=True, kw_only=True)
class Damage:
    """An object with other bytes than its name says; `found` is their sha256, or why they cannot be read."""

    digest: str
    size: int
    found: str


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What was removed, or would be: digests of objects and of half-written files; bytes are those on disk."""

    objects: tuple[str, ...]
    partials: tuple[str, ...]
    freed: int


def verify_objects(store: Store, on_object: Callable[[int], None] = lambda size: None) -> tuple[Damage, ...]:
    """Return every damaged object; `on_object` is told the bytes of each that was read."""

    def look(digest: str) -> Damage | None:
        path = store.path(digest)
        size = path.stat().st_size
        try:
            found = sha256_file(path)
        except OSError as error:
            found = f"cannot be read: {error.strerror}"
        on_object(size)
        return None if found == digest else Damage(digest=digest, size=size, found=found)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return tuple(damage for damage in pool.map(look, store.digests()) if damage)


def prune(store: Store, wanted: set[str], *, dry_run: bool) -> Pruned:
    """Remove objects and half-written files that are not `wanted`, and names of locks that are gone.

    What another rlbox writes right now stays.
    """
    objects = [digest for digest in store.digests() if digest not in wanted]
    partials = [path for path in store.partials() if path.name not in wanted and _is_idle(path)]
    freed = sum(_bytes(store.path(digest)) for digest in objects) + sum(map(_bytes, partials))
    if not dry_run:
        for digest in objects:
            store.remove(digest)
        for path in partials:
            _is_idle(path, remove=True)
        for known in known_locks(store):
            if not known.lock.exists():
                known.path.unlink(missing_ok=True)
    return Pruned(objects=tuple(objects), partials=tuple(path.name for path in partials), freed=freed)


def _bytes(path: Path) -> int:
    """Return the room that removing a file gives back: nothing when it has another link."""
    facts = path.stat()
    return facts.st_size if facts.st_nlink == 1 else 0


def _is_idle(path: Path, *, remove: bool = False) -> bool:
    with suppress(OSError):
        handle = open_locked_file(path, create=False)
        if handle is None:
            return False
        if remove:
            path.unlink()
        os.close(handle)
    return True
