"""What the objects of a store are: for every lock that was fetched, its files; and which objects are still wanted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rlbox.artifacts.base_image import base_digests
from rlbox.artifacts.objects import Store, not_writable
from rlbox.config.project import Project
from rlbox.errors import SpecError
from rlbox.foreign import parse_json
from rlbox.system.files import write_atomic
from rlbox.target.artifact import Artifact, named_files
from rlbox.target.lock import Lock, load_lock

_SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Known:
    """One lock that was fetched into the store: its target, where it lay, its files; `path` holds these facts."""

    target: str
    lock: Path
    files: tuple[Artifact, ...]
    path: Path


def remember(store: Store, target: str, lock: Path, files: Iterable[Artifact]) -> None:
    """Write down what a lock's objects are, in place of what was known of an earlier lock at the same path.

    `NodeError` when the store cannot be written.
    """
    mark = hashlib.sha256(str(lock).encode()).hexdigest()[:8]
    facts = {"schema": _SCHEMA, "target": target, "lock": str(lock), "files": [asdict(file) for file in files]}
    try:
        write_atomic(store.root / "names" / f"{target}-{mark}.json", json.dumps(facts, ensure_ascii=False) + "\n")
    except OSError as error:
        raise not_writable(store.root, error) from error


def known_locks(store: Store) -> Iterator[Known]:
    """Yield every lock that was fetched into the store; what cannot be read names nothing."""
    for path in sorted((store.root / "names").glob("*.json")):
        try:
            facts = parse_json(path.read_bytes())
            files = tuple(Artifact(**row) for row in facts["files"])
            yield Known(target=facts["target"], lock=Path(facts["lock"]), files=files, path=path)
        except (OSError, ValueError, KeyError, TypeError):
            continue


def names(store: Store) -> dict[str, tuple[Artifact, tuple[str, ...]]]:
    found: dict[str, tuple[Artifact, tuple[str, ...]]] = {}
    for known in known_locks(store):
        for file in known.files:
            _, targets = found.get(file.sha256, (file, ()))
            found[file.sha256] = (file, tuple(sorted({*targets, known.target})))
    return found


def describe(artifact: Artifact | None, targets: Iterable[str]) -> str:
    if artifact is None:
        return "unknown: no lock that was fetched names it"
    return f"{artifact.file.rpartition('/')[2]} ({artifact.kind}, {artifact.group}; {', '.join(targets)})"


def wanted_digests(store: Store, project: Project) -> set[str]:
    """Return the objects that a lock uses: of the project's targets, or of another project that was fetched.

    Raises
    ------
    SpecError
        A lock of the project cannot be read, so that nobody knows what it uses.
    """
    wanted: set[str] = set()
    own = {project.lock_file(name) for name in project.targets()}
    for path in sorted(own):
        lock = load_lock(path)
        wanted |= _digests(store, lock) if lock else set()
    for known in known_locks(store):
        if known.lock in own or not known.lock.exists():
            continue
        wanted |= {file.sha256 for file in known.files}
        try:
            lock = load_lock(known.lock)
        except SpecError:
            continue
        wanted |= _digests(store, lock) if lock else set()
    return wanted


def _digests(store: Store, lock: Lock) -> set[str]:
    return {file.sha256 for file in named_files(lock)} | base_digests(store, lock.base)
