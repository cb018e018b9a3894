"""Write the bundle of a run: one archive with all that explains it, masked once more, whole or not there."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import itertools
import json
import os
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.secrets.masks import SecretMasker
from rlbox.secrets.url_credentials import mask_credentials
from rlbox.supervise.bundle_plan import RunFile, SelectedFile, Selection, SkippedFile
from rlbox.system.files import open_atomic, require_writable_file
from rlbox.system.safe_files import open_regular_file, walk_files

MANIFEST = "manifest.json"
_BLOCK = 1 << 20
_MEMORY = 4 << 20
_WALKED = 20_000
_LEVEL = 6

OnBytes = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class BundleEntry:
    """One file of a bundle: `bytes` and `sha256` as it is in there, `left_out` bytes of it that are not."""

    name: str
    bytes: int
    sha256: str
    left_out: int = 0


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What an archive holds, `manifest.json` last, and what it does not."""

    files: tuple[BundleEntry, ...]
    left: tuple[SkippedFile, ...]


def list_files(run_dir: Path) -> list[RunFile]:
    """Return the files below a run directory, links not followed; of a directory with very many, the first 20 000."""
    walked = itertools.islice(walk_files(run_dir), _WALKED)
    return [RunFile(name=name, bytes=facts.st_size, plain=stat.S_ISREG(facts.st_mode)) for name, facts in walked]


def check_output_path(run_dir: Path, out: Path) -> None:
    """Refuse a place for the bundle that cannot take it.

    Raises
    ------
    SpecError
        It is inside the run directory, which the bundle would then be a part of.
    NodeError
        As `check_output`.
    """
    if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(run_dir)):
        raise SpecError(
            _("the bundle would lie inside the run directory"),
            where=str(out),
            next_step=_("name another place with --out"),
        )
    require_writable_file(out, "another with --out")


def write_bundle(
    run_dir: Path, selection: Selection, texts: Mapping[str, str], out: Path, masks: SecretMasker, on_bytes: OnBytes
) -> Bundle:
    """Write the archive `out` and return what is in it, secrets masked in names as in contents.

    The same files give the same bytes. `texts` are further files (name to text) that come first.

    Raises
    ------
    NodeError
        The disk is full or cannot be written; nothing is left of the file.
    """
    rows: list[BundleEntry] = []
    with (
        open_atomic(out, 0) as file,
        gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        writer = _Writer(archive, run_dir.name, masks, out.parent)
        rows += [writer.add_text(name, text) for name, text in texts.items()]
        for taken in selection.taken:
            row = writer.add_file(run_dir / taken.name, taken, on_bytes)
            rows += [row] if row else []
        left = mask_names((*selection.left, *writer.unread), masks)
        manifest = {
            "schema": 1,
            "run": run_dir.name,
            "files": [vars(row) for row in rows],
            "left_out": [vars(each) for each in left],
        }
        rows.append(writer.add_text(MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"))
    return Bundle(files=tuple(rows), left=left)


def mask_names(left: Iterable[SkippedFile], masks: SecretMasker) -> tuple[SkippedFile, ...]:
    """Return files that are left out, with secrets masked in their names."""
    return tuple(dataclasses.replace(each, name=masks.text(each.name)) for each in left)


class _Writer:
    def __init__(self, archive: tarfile.TarFile, folder: str, masks: SecretMasker, draft_folder: Path) -> None:
        self._archive = archive
        self._folder = folder
        self._masks = masks
        self._drafts = draft_folder
        self._names: set[str] = set()
        self.unread: list[SkippedFile] = []
        """What could not be read, or not to its end."""

    def add_text(self, name: str, text: str) -> BundleEntry:
        data = self._masks.text(text).encode("utf-8", "replace")
        self._add(name, io.BytesIO(data), len(data))
        return BundleEntry(name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    def add_file(self, path: Path, taken: SelectedFile, on_bytes: OnBytes) -> BundleEntry | None:
        """Add the end of a file as long as it was when it was listed; None when it cannot be read."""
        try:
            source = open_regular_file(path)
        except OSError as error:
            self._miss(taken, error)
            return None
        digest = hashlib.sha256()
        # its size is known only once it is masked, and the archive wants it first
        with source, tempfile.SpooledTemporaryFile(_MEMORY, dir=str(self._drafts)) as draft:
            left_out = taken.bytes - taken.keep
            if left_out:
                left_out += _seek_line(source, left_out)
                note = f"=== rlbox: {left_out} bytes left out here; rlbox bundle --full keeps them ===\n".encode()
                draft.write(note)
                digest.update(note)
            for block in self._masked(self._blocks(source, taken, taken.bytes - left_out, on_bytes)):
                draft.write(block)
                digest.update(block)
            size = draft.tell()
            draft.seek(0)
            name = self._name(taken.name)
            self._add(name, draft, size)
        return BundleEntry(name=name, bytes=size, sha256=digest.hexdigest(), left_out=left_out)

    def _blocks(self, source: IO[bytes], taken: SelectedFile, size: int, on_bytes: OnBytes) -> Iterator[bytes]:
        while size > 0:
            try:
                block = source.read(min(_BLOCK, size))
            except OSError as error:
                self._miss(taken, error)
                return
            if not block:
                return
            size -= len(block)
            on_bytes(len(block))
            yield block

    def _masked(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        stream, rest = self._masks.stream(), b""
        for block in blocks:
            rest += stream.feed(block)
            end = rest.rfind(b"\n") + 1 or (len(rest) if len(rest) > _BLOCK else 0)
            if end:
                yield _credentials(rest[:end])
                rest = rest[end:]
        yield _credentials(rest + stream.close())

    def _miss(self, taken: SelectedFile, error: OSError) -> None:
        self.unread.append(SkippedFile(name=taken.name, bytes=taken.bytes, why=f"cannot be read: {error.strerror}"))

    def _name(self, name: str) -> str:
        """Return a name with secrets masked, and unlike those before it, which may have been masked to the same."""
        found = masked = self._masks.text(name)
        number = 1
        while found in self._names:
            number += 1
            found = f"{masked}~{number}"
        self._names.add(found)
        return found

    def _add(self, name: str, source: IO[bytes], size: int) -> None:
        info = tarfile.TarInfo(f"{self._folder}/{name}")
        info.size, info.mode = size, 0o644
        self._archive.addfile(info, source)


def _credentials(data: bytes) -> bytes:
    return mask_credentials(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _seek_line(source: IO[bytes], offset: int) -> int:
    """Go to the line that begins at `offset` or after it; return how many bytes further that is."""
    source.seek(offset)
    further = len(source.readline(_BLOCK))
    source.seek(offset + further)
    return further
