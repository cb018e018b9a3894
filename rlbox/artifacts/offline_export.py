"""The files of a lock as an OCI artifact, in a directory or a registry: for machines without network."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlbox.artifacts.base_image import download_blob
from rlbox.artifacts.object_store import ObjectStore
from rlbox.engine.oci import (
    LAYOUT,
    LAYOUT_FILE,
    MANIFEST_TYPE,
    REF_NAME_ANNOTATION,
    TITLE_ANNOTATION,
    Descriptor,
    Manifest,
    compute_digest,
    create_descriptor,
    encode_json,
    parse_manifest,
)
from rlbox.engine.oci import create_index as oci_index
from rlbox.engine.reference import ImageReference
from rlbox.engine.registry_client import Registry
from rlbox.errors import NodeError, RegistryError, WorkFailed
from rlbox.i18n import _
from rlbox.system.files import compute_file_sha256, is_disk_full, write_atomic
from rlbox.target.artifact import Artifact

EXPORT_TYPE = "application/vnd.rlbox.inputs.v1"
LOCK_TYPE = "application/vnd.rlbox.lock.v2+json"
FILE_TYPE = "application/octet-stream"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
KIND, GROUP = "rlbox.kind", "rlbox.group"


@dataclass(frozen=True, kw_only=True)
class ExportDocuments:
    """The bytes of the documents of an export: lock, manifest, index."""

    lock_json: bytes
    manifest_json: bytes
    index_json: bytes

    @property
    def lock_descriptor(self) -> Descriptor:
        return create_descriptor(self.lock_json, LOCK_TYPE)


def create_oci_export_documents(target: str, lock_text: str, files: Sequence[Artifact]) -> ExportDocuments:
    """Return the documents that describe `files`; the same lock gives the same bytes."""
    body = lock_text.encode()
    manifest = encode_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": EXPORT_TYPE,
            "config": create_descriptor(body, LOCK_TYPE).to_json(),
            "layers": [_layer(file).to_json() for file in files],
            "annotations": {TITLE_ANNOTATION: target},
        }
    )
    listed = create_descriptor(
        manifest, MANIFEST_TYPE, artifact_type=EXPORT_TYPE, annotations={REF_NAME_ANNOTATION: target}
    )
    return ExportDocuments(lock_json=body, manifest_json=manifest, index_json=oci_index([listed]))


def _layer(file: Artifact) -> Descriptor:
    return Descriptor(
        media_type=FILE_TYPE,
        digest=f"sha256:{file.sha256}",
        size=file.size,
        annotations={TITLE_ANNOTATION: file.file.rpartition("/")[2], KIND: file.kind, GROUP: file.group},
    )


def is_export_manifest(manifest: Manifest) -> bool:
    blobs = (manifest.config, *manifest.layers)
    whole = all(blob is not None and _DIGEST.fullmatch(blob.digest) for blob in blobs)
    return whole and manifest.config is not None and manifest.config.media_type == LOCK_TYPE


def is_directory_path(destination: str) -> bool:
    """Return whether `--export PLACE` means a folder rather than a reference, by the look of it."""
    return destination.startswith(("/", "./", "../", "~")) or destination in (".", "..")


@dataclass(frozen=True, kw_only=True)
class ImportResult:
    """What an import did: files taken in, files that were in the store, and what is wrong with the others."""

    imported_files: int
    present_files: int
    damaged_files: tuple[str, ...]
    lock_json: bytes


def export_to_directory(
    documents: ExportDocuments, files: Sequence[Artifact], store: ObjectStore, directory: Path
) -> None:
    """Write an OCI layout of `files`; what an earlier export left is used again, and `index.json` comes last.

    Raises NodeError: the disk is full, or the folder cannot be written.
    Raises WorkFailed: the folder holds something else.
    """
    blobs = directory / "blobs/sha256"
    if directory.is_dir() and any(directory.iterdir()) and not (directory / LAYOUT_FILE).exists():
        raise WorkFailed(
            _("the folder of the export holds other things"), where=str(directory), next_step=_("name an empty one")
        )
    with _disk_errors(directory):
        blobs.mkdir(parents=True, exist_ok=True)
        (directory / "index.json").unlink(missing_ok=True)
        write_atomic(directory / LAYOUT_FILE, LAYOUT)
        for left in blobs.glob(".*"):
            left.unlink()
        for file in files:
            path = blobs / file.sha256
            if not _is_object(path, store.path(file.sha256), file):
                store.link_object(file.sha256, path)
        for body in (documents.lock_json, documents.manifest_json):
            write_atomic(blobs / compute_digest(body).removeprefix("sha256:"), body)
        os.sync()
        write_atomic(directory / "index.json", documents.index_json)


def _is_object(path: Path, source: Path, file: Artifact) -> bool:
    try:
        facts = path.stat()
        linked = os.path.samestat(facts, source.stat())
    except FileNotFoundError:
        return False
    return linked or (facts.st_size == file.size and compute_file_sha256(path) == file.sha256)


def import_from_directory(
    directory: Path, store: ObjectStore, on_file: Callable[[str], None] = lambda title: None
) -> ImportResult:
    """Take every whole file of an export into the store; `on_file` is told the name of each before it is read.

    Raises WorkFailed: it is no export, or one that was never finished.
    Raises NodeError: the store's disk is full.
    """
    manifest = read_export_manifest(directory)
    taken = present = 0
    bad = []
    with _disk_errors(store.root):
        for layer in manifest.layers:
            digest = layer.digest.removeprefix("sha256:")
            if store.is_intact(digest, layer.size):
                present += 1
                continue
            on_file(layer.annotations.get(TITLE_ANNOTATION, digest))
            why = _take(directory, layer, store)
            taken += not why
            bad += [f"{layer.annotations.get(TITLE_ANNOTATION, digest)}: {why}"] if why else []
    config = manifest.config
    assert config is not None  # noqa: S101  (`read_export_manifest` looked)
    return ImportResult(
        imported_files=taken, present_files=present, damaged_files=tuple(bad), lock_json=_read_blob(directory, config)
    )


def _take(directory: Path, layer: Descriptor, store: ObjectStore) -> str:
    """Take one file in; return what is wrong with it."""
    digest = layer.digest.removeprefix("sha256:")
    path = directory / "blobs/sha256" / digest
    if not path.is_file():
        return "missing"
    if (size := path.stat().st_size) != layer.size:
        return f"torn: {size} of {layer.size} bytes"
    found = store.import_file(path, digest)
    return "" if found == digest else f"damaged: its sha256 is {found[:12]}…, not {digest[:12]}…"


def read_export_manifest(directory: Path) -> Manifest:
    if not (directory / "index.json").is_file():
        raise WorkFailed(
            _("there is no finished export: index.json is missing"),
            where=str(directory),
            next_step=_("repeat rlbox fetch TARGET --export on the machine that has network"),
        )
    try:
        for listed in parse_manifest((directory / "index.json").read_bytes()).manifests:
            manifest = parse_manifest(_read_blob(directory, listed))
            if is_export_manifest(manifest):
                return manifest
    except (ValueError, OSError, json.JSONDecodeError) as error:
        raise WorkFailed(_("the export is damaged: {error}").format(error=error), where=str(directory)) from error
    raise WorkFailed(_("the folder is an OCI layout, but no export of rlbox"), where=str(directory))


def _read_blob(directory: Path, blob: Descriptor) -> bytes:
    body = (directory / "blobs/sha256" / blob.digest.removeprefix("sha256:")).read_bytes()
    if compute_digest(body) != blob.digest:
        raise ValueError(_("blob {digest}… has other bytes").format(digest=blob.digest[:19]))
    return body


@contextmanager
def _disk_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = is_disk_full(error)
        raise NodeError(
            _("the disk is full") if full else _("the disk fails: {strerror}").format(strerror=error.strerror),
            where=str(error.filename or directory),
            next_step=_("free space; the same command goes on where it stopped") if full else _("name another folder"),
        ) from error


def export_to_registry(
    documents: ExportDocuments,
    files: Sequence[Artifact],
    store: ObjectStore,
    destination: ImageReference,
    ca_bundle: str,
    on_file: Callable[[str], None] = lambda title: None,
) -> None:
    """Upload `files` and tag them; what the registry has is not sent again. `RegistryError` when it refuses."""
    with Registry(destination.host, write=True, ca_bundle=ca_bundle) as registry:
        for file in {file.sha256: file for file in files}.values():
            on_file(file.file.rpartition("/")[2])
            blob = Descriptor(media_type="", digest=f"sha256:{file.sha256}", size=file.size)
            registry.put_blob(destination.repository, blob, store.path(file.sha256))
        registry.put_blob(destination.repository, documents.lock_descriptor, documents.lock_json)
        registry.put_manifest(
            destination.repository, destination.tag or "latest", documents.manifest_json, MANIFEST_TYPE
        )


def import_from_registry(
    source: ImageReference, store: ObjectStore, ca_bundle: str, on_file: Callable[[str], None] = lambda title: None
) -> ImportResult:
    """Take the files of a lock from a registry into the store; wrong bytes are named, the right ones kept.

    Raises RegistryError: there is nothing under that name, or something that `rlbox fetch --export` did not put there.
    """
    taken, bad = 0, []
    with Registry(source.host, ca_bundle=ca_bundle) as registry:
        manifest = registry.get_manifest(source.repository, source.digest or source.tag or "latest")
        config = manifest.config
        if config is None or not is_export_manifest(manifest):
            raise RegistryError(
                _("{source} is no export of rlbox").format(source=source),
                next_step="rlbox fetch TARGET --export " + str(source),
            )
        for layer in manifest.layers:
            file = _artifact(layer, source)
            if store.is_intact(file.sha256, file.size):
                continue
            on_file(file.file)
            with store.wait_for_partial(file.sha256) as partial:
                try:
                    download_blob(registry, source.repository, file, partial)
                    partial.commit()
                    taken += 1
                except RegistryError as error:
                    bad.append(f"{file.file}: {error.what}")
        lock = registry.read_blob(source.repository, config.digest)
    return ImportResult(
        imported_files=taken,
        present_files=len(manifest.layers) - taken - len(bad),
        damaged_files=tuple(bad),
        lock_json=lock,
    )


def _artifact(layer: Descriptor, source: ImageReference) -> Artifact:
    title = layer.annotations.get(TITLE_ANNOTATION, "lock.json")
    digest = layer.digest.removeprefix("sha256:")
    return Artifact(
        kind="oci", name=title, file=title, sha256=digest, size=layer.size, group="inputs", origin=str(source)
    )
