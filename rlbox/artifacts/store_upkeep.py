"""Upkeep of the store and the caches: which objects are used and what they are, verification, removal."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from rlbox.artifacts.base_image import list_stored_base_digests
from rlbox.artifacts.object_store import ObjectStore, create_unwritable_store_error
from rlbox.config.project import Project
from rlbox.errors import SpecError
from rlbox.foreign import parse_json
from rlbox.system.file_lock import open_and_lock_file, require_unlocked
from rlbox.system.files import cache_path, compute_file_sha256, write_atomic
from rlbox.system.safe_files import remove_tree, walk_files
from rlbox.target.artifact import Artifact, list_all_artifacts
from rlbox.target.lock import Lock, load_lock

_SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class FetchedLock:
    """One lock that was fetched into the store; `record_path` is the file in the store that says so."""

    target: str
    lock_path: Path
    files: tuple[Artifact, ...]
    record_path: Path


def record_fetched_lock(store: ObjectStore, target: str, lock_path: Path, files: Iterable[Artifact]) -> None:
    """Write down what a lock's objects are, in place of what was known of an earlier lock at the same path.

    `NodeError` when the store cannot be written.
    """
    mark = hashlib.sha256(str(lock_path).encode()).hexdigest()[:8]
    facts = {"schema": _SCHEMA, "target": target, "lock": str(lock_path), "files": [asdict(file) for file in files]}
    try:
        write_atomic(store.root / "names" / f"{target}-{mark}.json", json.dumps(facts, ensure_ascii=False) + "\n")
    except OSError as error:
        raise create_unwritable_store_error(store.root, error) from error


def list_fetched_locks(store: ObjectStore) -> Iterator[FetchedLock]:
    """Yield every lock that was fetched into the store; what cannot be read names nothing."""
    for path in sorted((store.root / "names").glob("*.json")):
        try:
            facts = parse_json(path.read_bytes())
            files = tuple(Artifact(**row) for row in facts["files"])
            yield FetchedLock(target=facts["target"], lock_path=Path(facts["lock"]), files=files, record_path=path)
        except (OSError, ValueError, KeyError, TypeError):
            continue


class StoredObject(NamedTuple):
    """A file of a fetched lock, and the targets whose locks name it."""

    artifact: Artifact
    targets: tuple[str, ...]


def map_objects_to_targets(store: ObjectStore) -> dict[str, StoredObject]:
    found: dict[str, StoredObject] = {}
    for known in list_fetched_locks(store):
        for file in known.files:
            before = found.get(file.sha256)
            targets = before.targets if before else ()
            found[file.sha256] = StoredObject(file, tuple(sorted({*targets, known.target})))
    return found


def describe_object(artifact: Artifact | None, targets: Iterable[str]) -> str:
    if artifact is None:
        return "unknown: no lock that was fetched names it"
    return f"{artifact.file.rpartition('/')[2]} ({artifact.kind}, {artifact.group}; {', '.join(targets)})"


def collect_used_digests(store: ObjectStore, project: Project) -> set[str]:
    """Return the objects that a lock uses: of the project's targets, or of another project that was fetched.

    Raises SpecError: A lock of the project cannot be read, so that nobody knows what it uses.
    """
    wanted: set[str] = set()
    own = {project.lock_file(name) for name in project.targets()}
    for path in sorted(own):
        lock = load_lock(path)
        wanted |= _digests(store, lock) if lock else set()
    for known in list_fetched_locks(store):
        if known.lock_path in own or not known.lock_path.exists():
            continue
        wanted |= {file.sha256 for file in known.files}
        try:
            lock = load_lock(known.lock_path)
        except SpecError:
            continue
        wanted |= _digests(store, lock) if lock else set()
    return wanted


def _digests(store: ObjectStore, lock: Lock) -> set[str]:
    return {file.sha256 for file in list_all_artifacts(lock)} | list_stored_base_digests(store, lock.base)


@dataclass(frozen=True, kw_only=True)
class DamagedObject:
    """An object with other bytes than its name says; `actual_sha256` is None where they cannot be read."""

    digest: str
    size: int
    actual_sha256: str | None
    read_error: str = ""


@dataclass(frozen=True, kw_only=True)
class PruneResult:
    """What was removed, or would be: digests of objects and of half-written files; bytes are those on disk."""

    objects: tuple[str, ...]
    partials: tuple[str, ...]
    freed_bytes: int


def verify_objects(
    store: ObjectStore, on_object: Callable[[int], None] = lambda size: None
) -> tuple[DamagedObject, ...]:
    """Return every damaged object; `on_object` is told the bytes of each that was read."""

    def look(digest: str) -> DamagedObject | None:
        path = store.path(digest)
        size = path.stat().st_size
        actual, read_error = None, ""
        try:
            actual = compute_file_sha256(path)
        except OSError as error:
            read_error = f"cannot be read: {error.strerror}"
        on_object(size)
        if actual == digest:
            return None
        return DamagedObject(digest=digest, size=size, actual_sha256=actual, read_error=read_error)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return tuple(damage for damage in pool.map(look, store.list_digests()) if damage)


def prune_store(store: ObjectStore, used_digests: set[str], *, dry_run: bool) -> PruneResult:
    """Remove objects and half-written files that are not `used_digests`, and names of locks that are gone.

    What another rlbox writes right now stays.
    """
    objects = [digest for digest in store.list_digests() if digest not in used_digests]
    partials = [path for path in store.list_partials() if path.name not in used_digests and _is_idle(path)]
    freed = sum(_bytes(store.path(digest)) for digest in objects) + sum(map(_bytes, partials))
    if not dry_run:
        for digest in objects:
            store.remove(digest)
        for path in partials:
            _is_idle(path, remove=True)
        for known in list_fetched_locks(store):
            if not known.lock_path.exists():
                known.record_path.unlink(missing_ok=True)
    return PruneResult(objects=tuple(objects), partials=tuple(path.name for path in partials), freed_bytes=freed)


def _bytes(path: Path) -> int:
    """Return the room that removing a file gives back: nothing when it has another link."""
    facts = path.stat()
    return facts.st_size if facts.st_nlink == 1 else 0


def _is_idle(path: Path, *, remove: bool = False) -> bool:
    with suppress(OSError):
        handle = open_and_lock_file(path, create=False)
        if handle is None:
            return False
        if remove:
            path.unlink()
        os.close(handle)
    return True


_NO_CACHE = ("locks", "places", "store")
"""Folders below the cache folder that have their own commands, or are in use."""

_BLOCK = 512
"""Bytes that the kernel counts as one block of a file."""


@dataclass(frozen=True, kw_only=True)
class CacheEntry:
    """One file or folder of a cache; of a file with several links, `size` has the share of one."""

    path: Path
    size: int
    last_used_s: float


def find_unused_cache_entries(max_age_s: float) -> list[CacheEntry]:
    before = time.time() - max_age_s
    entries = []
    for cache in _inside(cache_path()):
        for path in _inside(cache) if cache.name not in _NO_CACHE else ():
            with suppress(FileNotFoundError):  # another rlbox has removed it meanwhile
                entries.append(_entry(path))
    return [entry for entry in entries if entry.last_used_s < before]


def remove_cache_entries(entries: Sequence[CacheEntry]) -> None:
    """Remove cache entries; one that is killed in the middle is still under its name, or gone.

    Raises LockHeld: another rlbox builds or installs a target right now, perhaps with one of them; nothing is removed.
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


def _inside(directory: Path) -> Iterable[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _entry(path: Path) -> CacheEntry:
    stats = [path.lstat(), *(row for _, row in walk_files(path, include_directories=True))]
    size = sum(row.st_blocks * _BLOCK // (1 if stat.S_ISDIR(row.st_mode) else row.st_nlink) for row in stats)
    return CacheEntry(path=path, size=size, last_used_s=max(map(_used_at, stats)))


def _used_at(row: os.stat_result) -> float:
    """Return when a file was read or written; to list a folder, or to read another link of a file, is no use of it."""
    if stat.S_ISDIR(row.st_mode):
        return row.st_mtime
    return max(row.st_mtime, row.st_atime) if stat.S_ISREG(row.st_mode) and row.st_nlink == 1 else 0.0
