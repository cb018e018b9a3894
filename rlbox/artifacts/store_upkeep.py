"""Upkeep of the store and the caches: which objects are used and what they are, verification, removal."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rlbox.artifacts.base_image import list_base_files_in_stored_manifests
from rlbox.artifacts.object_store import ObjectStore, create_unwritable_store_error
from rlbox.config.hub import load_hub_lock
from rlbox.config.project import Project
from rlbox.errors import SpecError
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.system.file_lock import open_lock_unless_held, require_unlocked
from rlbox.system.files import cache_path, compute_file_sha256, write_atomic
from rlbox.system.safe_files import remove_tree, walk_non_directories
from rlbox.target.artifact import Artifact, list_all_artifacts_with_repeats, list_hub_artifacts
from rlbox.target.lock import load_lock

_SCHEMA = 1


class FetchedLock(NamedTuple):
    """A lock whose files were fetched into the store; `record_path` is the file in the store that says so."""

    target: str
    lock_path: Path
    record_path: Path


def record_fetched_lock(store: ObjectStore, target: str, lock_path: Path) -> None:
    """Write down that the store has files of a lock of a target or a job, `target`.

    `MachineError` when it cannot be written.
    """
    mark = hashlib.sha256(str(lock_path).encode()).hexdigest()[:8]
    text = json.dumps({"schema": _SCHEMA, "target": target, "lock": str(lock_path)}, ensure_ascii=False)
    try:
        write_atomic(store.root / "names" / f"{target}-{mark}.json", f"{text}\n")
    except OSError as error:
        raise create_unwritable_store_error(store.root, error) from error


def list_fetched_locks(store: ObjectStore) -> Iterator[FetchedLock]:
    """Yield every lock that was fetched into the store; what cannot be read names nothing."""
    for path in sorted((store.root / "names").glob("*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            record = parse_untrusted_json(path.read_bytes())
            yield FetchedLock(record["target"], Path(record["lock"]), path)


def _list_files(store: ObjectStore, lock_path: Path) -> tuple[Artifact, ...]:
    if lock_path.name.endswith(".lock.json"):
        hub_lock = load_hub_lock(lock_path)
        return list_hub_artifacts(hub_lock.repos) if hub_lock else ()
    lock = load_lock(lock_path)
    if lock is None:
        return ()
    return (*list_all_artifacts_with_repeats(lock), *list_base_files_in_stored_manifests(store, lock.base))


class RecordedFile(NamedTuple):
    """A file of a fetched lock, and the targets whose locks name it."""

    artifact: Artifact
    targets: tuple[str, ...]


def map_sha256_to_recorded_file(store: ObjectStore) -> dict[str, RecordedFile]:
    found: dict[str, RecordedFile] = {}
    for known in list_fetched_locks(store):
        files: tuple[Artifact, ...] = ()
        with suppress(SpecError):
            files = _list_files(store, known.lock_path)
        for file in files:
            before = found.get(file.sha256)
            targets = before.targets if before else ()
            found[file.sha256] = RecordedFile(file, tuple(sorted({*targets, known.target})))
    return found


def describe_object(artifact: Artifact | None, targets: Iterable[str]) -> str:
    if artifact is None:
        return _("unknown: no lock that was fetched names it")
    return f"{artifact.file.rpartition('/')[2]} ({artifact.kind}, {artifact.group}; {', '.join(targets)})"


def collect_digests_used_by_any_project(store: ObjectStore, project: Project) -> set[str]:
    """Return the objects that a lock uses: of the project's targets, or of another project that was fetched.

    Raises SpecError: A lock cannot be read, so that nobody knows what it uses.
    """
    own = {project.own_or_shipped_lock_file(name) for name in project.own_pack_and_shipped_target_files()}
    own |= {
        project.own_or_shipped_hub_lock_file("target", name) for name in project.own_pack_and_shipped_target_files()
    }
    own |= {project.own_or_shipped_hub_lock_file("job", name) for name in project.own_pack_and_shipped_job_files()}
    used = {file.sha256 for path in sorted(own) for file in _list_files(store, path)}
    for known in list_fetched_locks(store):
        used |= {file.sha256 for file in _list_files(store, known.lock_path)}
    return used


def find_damaged_digests(store: ObjectStore) -> list[str]:
    """Return the digests of objects that cannot be read, or have other bytes than their names say."""

    def is_damaged(digest: str) -> bool:
        try:
            return compute_file_sha256(store.path(digest)) != digest
        except OSError:
            return True

    digests = list(store.list_digests())
    with ThreadPoolExecutor() as pool:
        return [digest for digest, damaged in zip(digests, pool.map(is_damaged, digests), strict=True) if damaged]


def find_unused_objects_and_partials(store: ObjectStore, project: Project) -> dict[Path, int]:
    """Return the objects and half-written files that no lock uses, each with the bytes that removing it frees.

    What another rlbox writes right now is not among them.
    """
    used = collect_digests_used_by_any_project(store, project)
    objects = [store.path(digest) for digest in store.list_digests() if digest not in used]
    partials = [path for path in store.list_partials() if path.name not in used and _is_idle(path)]
    unused = {}
    for path in (*objects, *partials):
        with suppress(FileNotFoundError):  # another rlbox renamed or removed it meanwhile
            unused[path] = _freed_bytes(path.stat())
    return unused


def remove_objects_and_records_of_gone_lock_files(store: ObjectStore, object_paths: Iterable[Path]) -> None:
    for path in object_paths:
        path.unlink(missing_ok=True)
    for known in list_fetched_locks(store):
        if not known.lock_path.exists():
            known.record_path.unlink(missing_ok=True)


def _freed_bytes(stats: os.stat_result) -> int:
    return stats.st_size if stats.st_nlink == 1 else 0  # the bytes of a file with another link stay


def _is_idle(partial: Path) -> bool:
    handle = None
    with suppress(OSError):  # another rlbox renamed or removed it meanwhile, or makes a link of it
        handle = open_lock_unless_held(partial, create_else_raise=False)
    if handle is None:
        return False
    os.close(handle)
    return True


_NO_CACHE = ("locks", "places", "store")
"""Folders below the cache folder that have their own commands, or are in use."""


def find_unused_rlbox_cache_entries(unused_for_s: float, store: ObjectStore) -> dict[Path, int]:
    """Return the entries of caches of which no file was read or written for `unused_for_s`, with their bytes.

    Snapshots of models and data sets are among them: a run marks those that it uses.
    """
    oldest = time.time() - unused_for_s
    unused = {}
    caches = [cache for cache in _list_directory(cache_path()) if cache.name not in _NO_CACHE]
    for cache in (*caches, store.snapshots_dir):
        for entry in _list_directory(cache):
            stats = [entry.lstat(), *(row for _, row in walk_non_directories(entry))]
            if all(_last_use_s(row) < oldest for row in stats):
                unused[entry] = sum(map(_freed_bytes, stats))
    return unused


def _last_use_s(stats: os.stat_result) -> float:
    """Return when a file was read or written; to list a folder, or to read another link of a file, is no use of it."""
    is_read = stat.S_ISREG(stats.st_mode) and stats.st_nlink == 1
    return max(stats.st_mtime, stats.st_atime) if is_read else stats.st_mtime


def require_unlocked_and_remove_cache_entries(entries: Iterable[Path]) -> None:
    """Remove cache entries; one that is killed in the middle is still under its name, or gone.

    Raises LockHeld: another rlbox builds or installs a target right now, perhaps with one of them; nothing is removed.
    """
    for lock in _list_directory(cache_path("locks")):
        require_unlocked(lock, "caches")
    for entry in entries:
        gone = entry.with_name(f".{entry.name}.{os.getpid()}")
        os.replace(entry, gone)
        remove_tree(gone) if gone.is_dir() and not gone.is_symlink() else gone.unlink()


def _list_directory(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []
