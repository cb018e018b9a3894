"""Write the files of a lock as an OCI image layout, and take one in: for machines without network."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlbox.artifacts.inputs import InputsPlan, is_inputs
from rlbox.artifacts.objects import Store
from rlbox.engine.oci import LAYOUT, LAYOUT_FILE, TITLE, Descriptor, Manifest, parse_manifest, sha256_of
from rlbox.errors import NodeError, WorkFailed
from rlbox.i18n import _
from rlbox.system.files import is_disk_full, sha256_file, write_atomic
from rlbox.target.artifact import Artifact


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What an import did: files taken in, files that were in the store, and what is wrong with the others."""

    taken: int
    present: int
    bad: tuple[str, ...]
    lock: bytes


def export_folder(plan: InputsPlan, files: Sequence[Artifact], store: Store, folder: Path) -> None:
    """Write an OCI layout of `files`; what an earlier export left is used again, and `index.json` comes last.

    Raises
    ------
    NodeError
        The disk is full, or the folder cannot be written.
    WorkFailed
        The folder holds something else.
    """
    blobs = folder / "blobs/sha256"
    if folder.is_dir() and any(folder.iterdir()) and not (folder / LAYOUT_FILE).exists():
        raise WorkFailed(
            _("the folder of the export holds other things"), where=str(folder), next_step=_("name an empty one")
        )
    with _disk_errors(folder):
        blobs.mkdir(parents=True, exist_ok=True)
        (folder / "index.json").unlink(missing_ok=True)
        write_atomic(folder / LAYOUT_FILE, LAYOUT)
        for left in blobs.glob(".*"):
            left.unlink()
        for file in files:
            path = blobs / file.sha256
            if not _is_object(path, store.path(file.sha256), file):
                store.link(file.sha256, path)
        for body in (plan.lock, plan.manifest):
            write_atomic(blobs / sha256_of(body).removeprefix("sha256:"), body)
        os.sync()
        write_atomic(folder / "index.json", plan.index)


def _is_object(path: Path, source: Path, file: Artifact) -> bool:
    try:
        facts = path.stat()
        linked = os.path.samestat(facts, source.stat())
    except FileNotFoundError:
        return False
    return linked or (facts.st_size == file.size and sha256_file(path) == file.sha256)


def import_folder(folder: Path, store: Store, on_file: Callable[[str], None] = lambda title: None) -> Imported:
    """Take every whole file of an export into the store; `on_file` is told the name of each before it is read.

    Raises
    ------
    WorkFailed
        It is no export, or one that was never finished.
    NodeError
        The store's disk is full.
    """
    manifest = require_export(folder)
    taken = present = 0
    bad = []
    with _disk_errors(store.root):
        for layer in manifest.layers:
            digest = layer.digest.removeprefix("sha256:")
            if store.intact(digest, layer.size):
                present += 1
                continue
            on_file(layer.annotations.get(TITLE, digest))
            why = _take(folder, layer, store)
            taken += not why
            bad += [f"{layer.annotations.get(TITLE, digest)}: {why}"] if why else []
    config = manifest.config
    assert config is not None  # noqa: S101  (`require_export` looked)
    return Imported(taken=taken, present=present, bad=tuple(bad), lock=_read_blob(folder, config))


def _take(folder: Path, layer: Descriptor, store: Store) -> str:
    """Take one file in; return what is wrong with it."""
    digest = layer.digest.removeprefix("sha256:")
    path = folder / "blobs/sha256" / digest
    if not path.is_file():
        return "missing"
    if (size := path.stat().st_size) != layer.size:
        return f"torn: {size} of {layer.size} bytes"
    found = store.adopt(path, digest)
    return "" if found == digest else f"damaged: its sha256 is {found[:12]}…, not {digest[:12]}…"


def require_export(folder: Path) -> Manifest:
    if not (folder / "index.json").is_file():
        raise WorkFailed(
            _("there is no finished export: index.json is missing"),
            where=str(folder),
            next_step=_("repeat rlbox fetch TARGET --export on the machine that has network"),
        )
    try:
        for listed in parse_manifest((folder / "index.json").read_bytes()).manifests:
            manifest = parse_manifest(_read_blob(folder, listed))
            if is_inputs(manifest):
                return manifest
    except (ValueError, OSError, json.JSONDecodeError) as error:
        raise WorkFailed(_("the export is damaged: {error}").format(error=error), where=str(folder)) from error
    raise WorkFailed(_("the folder is an OCI layout, but no export of rlbox"), where=str(folder))


def _read_blob(folder: Path, blob: Descriptor) -> bytes:
    body = (folder / "blobs/sha256" / blob.digest.removeprefix("sha256:")).read_bytes()
    if sha256_of(body) != blob.digest:
        raise ValueError(_("blob {digest}… has other bytes").format(digest=blob.digest[:19]))
    return body


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = is_disk_full(error)
        raise NodeError(
            _("the disk is full") if full else _("the disk fails: {strerror}").format(strerror=error.strerror),
            where=str(error.filename or folder),
            next_step=_("free space; the same command goes on where it stopped") if full else _("name another folder"),
        ) from error
