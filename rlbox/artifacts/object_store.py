"""Content-addressed store of files: each is complete and correct under its sha256, or absent.

`objects/sha256/ab/<hex>` holds the files, `partial/<hex>` unfinished ones, `names/` the files of each fetched lock,
`snapshots/` the folders of models and data sets, as links. A partial file carries a kernel lock while a process writes
it, so that a file is downloaded once, however many want it.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlbox.errors import MachineError, WorkFailed
from rlbox.i18n import _
from rlbox.system.file_lock import open_lock_unless_held
from rlbox.system.files import cache_path, compute_file_sha256, hardlink_or_make_readonly_copy, write_atomic

_BLOCK = 1 << 20
_NAME = re.compile(r"[0-9a-f]{64}")
_WRONG_MIRROR_S = 86_400.0
_SEAL_NS = 315_532_800 * 10**9
"""Time stamp of an object that was verified (1980-01-01): whoever writes to it changes the stamp, and is found out."""


def resolve_store_dir(store_option: str | None) -> Path:
    """Return the store's directory: `--store`, `RLBOX_STORE`, or one in the cache; absolute."""
    text = store_option or os.environ.get("RLBOX_STORE")
    return Path(os.path.expanduser(text)).absolute() if text else cache_path("store")


class PartialObject:
    """An object being written, continued where an earlier writer stopped; nobody else writes it meanwhile.

    `size` is in bytes, `begun_by` the mirror of its first byte, empty where another process wrote it. What is there
    when the block ends without `commit` stays for the next writer.
    """

    def __init__(self, handle: int, path: Path, final: Path) -> None:
        self._file = os.fdopen(handle, "r+b", buffering=0)
        self._path, self._final = path, final
        self._sum = hashlib.sha256()
        self.size, self.begun_by = 0, ""
        self._kept = False
        while block := self._file.read(_BLOCK):
            self._sum.update(block)
            self.size += len(block)

    def __enter__(self) -> PartialObject:
        return self

    def __exit__(self, *failure: object) -> None:
        with self._file:
            if not self._kept and self.size == 0:
                self._path.unlink(missing_ok=True)

    @property
    def digest_so_far(self) -> str:
        return self._sum.hexdigest()

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            count = self._file.write(rest)
            self._sum.update(rest[:count])
            self.size += count
            rest = rest[count:]

    def truncate(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._sum = hashlib.sha256()
        self.size = 0

    def commit(self) -> None:
        if self.digest_so_far != self._final.name:
            raise ValueError(_("{digest} is not {final}").format(digest=self.digest_so_far, final=self._final.name))
        os.fsync(self._file.fileno())
        self._final.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self._path, self._final)
        self._kept = True
        _seal(self._final)

    def _commit_link_if_sha256_matches(self, path: Path) -> str:
        """Put a link or copy of `path` under the object's name if it has the right bytes; return its sha256."""
        draft = self._path.with_name(f".{self._path.name}")
        draft.unlink(missing_ok=True)
        self._final.parent.mkdir(parents=True, exist_ok=True)
        try:
            hardlink_or_make_readonly_copy(path, draft)
            digest = compute_file_sha256(draft)
            if digest == self._final.name:
                _seal(draft)
                os.replace(draft, self._final)
            return digest
        finally:
            draft.unlink(missing_ok=True)


class ObjectStore:
    """A store at `root`, which is made when the first object is written; `seals` lets it mark what it has verified."""

    def __init__(self, root: Path, *, seals: bool = True) -> None:
        self.root, self._seals = root, seals

    @property
    def snapshots_dir(self) -> Path:
        return self.root / "snapshots"

    def path(self, digest: str) -> Path:
        return self.root / "objects/sha256" / digest[:2] / digest

    def has(self, digest: str) -> bool:
        return self.path(digest).is_file()

    def verify_and_mark_if_intact(self, digest: str, size: int | None = None) -> bool:
        """Return whether the object is there with the right size, if one is known, and the right sum.

        A sum is not taken again when the object's stamp says that it was right.
        """
        path = self.path(digest)
        try:
            facts = path.stat()
            if size and facts.st_size != size:
                return False
            if facts.st_mtime_ns == _SEAL_NS:
                return True
            if compute_file_sha256(path) != digest:
                return False
        except FileNotFoundError:
            return False
        except NotADirectoryError as error:
            raise create_unwritable_store_error(self.root, error) from error
        if self._seals:
            with suppress(PermissionError):
                _seal(path)
        return True

    def list_digests(self) -> Iterator[str]:
        for path in sorted((self.root / "objects/sha256").glob("??/*")):
            if _NAME.fullmatch(path.name):
                yield path.name

    def list_partials(self) -> Iterator[Path]:
        yield from sorted((self.root / "partial").glob("*"))

    def count_partial_bytes(self, digest: str) -> int:
        try:
            return (self.root / "partial" / digest).stat().st_size
        except FileNotFoundError:
            return 0

    def open_or_create_partial_unless_locked(self, digest: str) -> PartialObject | None:
        """Return the object's draft, or None while another writes it.

        The other may have finished it in between: look again before writing.
        """
        partial = self.root / "partial" / digest
        try:
            partial.parent.mkdir(parents=True, exist_ok=True)
            handle = open_lock_unless_held(partial, create_else_raise=True)
        except OSError as error:
            raise create_unwritable_store_error(self.root, error) from error
        return None if handle is None else PartialObject(handle, partial, self.path(digest))

    @contextmanager
    def wait_for_partial(self, digest: str) -> Iterator[PartialObject]:
        while (draft := self.open_or_create_partial_unless_locked(digest)) is None:
            time.sleep(0.1)
        with draft:
            yield draft

    def add_file_if_matching_return_actual_sha256(self, path: Path, expected_sha256: str) -> str:
        """Take a file in when it has the expected bytes: a link, or a copy from another disk; return its sha256."""
        with self.wait_for_partial(expected_sha256) as draft:
            if self.verify_and_mark_if_intact(expected_sha256):
                return expected_sha256
            draft.truncate()
            return draft._commit_link_if_sha256_matches(path)

    def record_wrong_mirror(self, mirror: str) -> None:
        """Remember that a mirror gave wrong bytes, also after this process was killed."""
        write_atomic(self.root / "wrong-mirrors" / mirror.replace("/", "_"), "")

    def list_recent_wrong_mirrors(self) -> list[str]:
        """Return the mirrors that gave wrong bytes in the last day."""
        since = time.time() - _WRONG_MIRROR_S
        return [path.name for path in (self.root / "wrong-mirrors").glob("*") if path.stat().st_mtime > since]

    def link_object_replacing_path(self, digest: str, path: Path) -> None:
        """Put an object at `path` in place of what is there: a hard link, a copy on another file system.

        Whoever gets a link must not write to it. `WorkFailed` when the store has no such object.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name[:40]}.{os.getpid()}.{digest[:8]}")
        try:
            hardlink_or_make_readonly_copy(self.path(digest), draft)
            os.replace(draft, path)
        except FileNotFoundError as error:
            raise WorkFailed(
                _("the store does not hold {path} ({digest})").format(path=path.name, digest=digest[:12]),
                where=str(self.root),
                next_step="rlbox fetch TARGET",
            ) from error
        finally:
            draft.unlink(missing_ok=True)

    def link_preverified_object_unless_path_intact(self, digest: str, size: int, path: Path) -> None:
        """Link an object that was verified, unless `path` is such a link or copy and nobody has written to it since."""
        with suppress(OSError):
            facts = path.lstat()
            if facts.st_size == size and facts.st_mtime_ns == _SEAL_NS:
                return
        self.link_object_replacing_path(digest, path)
        os.utime(path, ns=(_SEAL_NS, _SEAL_NS))  # of a copy

    def remove(self, digest: str) -> None:
        self.path(digest).unlink(missing_ok=True)


def create_unwritable_store_error(root: Path, error: OSError) -> MachineError:
    return MachineError(
        _("the store cannot be written: {strerror}").format(strerror=error.strerror),
        where=str(root),
        next_step=_("name another with --store DIR or RLBOX_STORE"),
    )


def _seal(path: Path) -> None:
    path.chmod(0o444)
    os.utime(path, ns=(_SEAL_NS, _SEAL_NS))
