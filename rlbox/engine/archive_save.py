"""Write an image to an OCI archive: layers as the engine stores them; zstd where the engine stores them plain."""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from rlbox.engine.archive_format import (
    DOCKER_MANIFEST_FILE,
    INDEX_FILE,
    ArchiveWriter,
    ByteCallback,
    create_archive_index,
    create_docker_manifest,
    format_blob_path,
    rename_archive_image,
)
from rlbox.engine.connection import connect_engine
from rlbox.engine.oci import (
    CONFIG_TYPE,
    LAYER_TYPE,
    LAYOUT,
    LAYOUT_FILE,
    MANIFEST_TYPE,
    Descriptor,
    create_descriptor,
    create_image_manifest,
    find_manifest_digest,
)
from rlbox.errors import WorkFailed
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.compression import CHUNK, ChunkReader, DigestReader, compress_zstd
from rlbox.system.files import open_atomic

_SMALL = 4 << 20
_DOCUMENTS = ("VERSION", "repositories")


@dataclass(frozen=True, kw_only=True)
class SavedArchive:
    """An archive on disk; `manifest_digest` is that of the image's manifest in it, `file_bytes` the file's in bytes."""

    manifest_digest: str
    file_bytes: int


def save_image_archive(
    engine_image: dict[str, Any], tag: str, archive_tag: str, path: Path, on_bytes: ByteCallback = lambda count: None
) -> SavedArchive:
    """Write the engine's image `tag` to `path`, in which it is called `archive_tag`; the file is whole or not there.

    Raises NodeError: the disk is full or cannot be written.
    Raises WorkFailed: what the engine gave is not the image it described.
    """
    digest = find_manifest_digest(engine_image)
    size = int(engine_image.get("Size") or 0)
    need = size if digest else size // 2  # zstd halves what an engine stores plain
    with open_atomic(path, need) as file:
        exported = _told(connect_engine().export_image(tag), on_bytes)
        if digest:
            file.writelines(rename_archive_image(exported, archive_tag))
        else:
            digest = write_zstd_archive(file, archive_tag, exported)
    return SavedArchive(manifest_digest=digest, file_bytes=path.stat().st_size)


def _told(chunks: Iterator[bytes], on_bytes: ByteCallback) -> Iterator[bytes]:
    for chunk in chunks:
        on_bytes(len(chunk))
        yield chunk


@dataclass(frozen=True, kw_only=True)
class _Export:
    """What came out of the engine so far, by name: packed layers with the digest of their contents, and documents."""

    layers: dict[str, tuple[Descriptor, str]] = field(default_factory=dict)
    documents: dict[str, bytes] = field(default_factory=dict)


def write_zstd_archive(output: BinaryIO, archive_tag: str, docker_export: Iterator[bytes]) -> str:
    """Write the archive and return the digest of the manifest in it: the same for the same image, everywhere.

    `docker_export` is what an engine without the containerd store exports: plain layers, which become zstd. The
    configuration is the engine's own, so that the image id of such an engine stays what it was.

    Raises WorkFailed: A layer is not what the image's configuration says.
    """
    writer = ArchiveWriter(output)
    writer.add_file(LAYOUT_FILE, LAYOUT)
    export = _Export()
    with tarfile.open(fileobj=cast(IO[bytes], ChunkReader(docker_export)), mode="r|", bufsize=CHUNK) as exported:
        for member in exported:
            if member.issym():  # a layer that occurs twice
                there = posixpath.normpath(posixpath.join(posixpath.dirname(member.name), member.linkname))
                export.layers[member.name] = export.layers[there]
            elif member.isfile():
                _take(writer, export, member, cast(IO[bytes], exported.extractfile(member)))
    return _finish(writer, export, archive_tag)


def _take(writer: ArchiveWriter, export: _Export, member: tarfile.TarInfo, source: IO[bytes]) -> None:
    head = source.read(1)
    if member.size < _SMALL and (head == b"{" or head == b"[" or posixpath.basename(member.name) in _DOCUMENTS):
        export.documents[member.name] = head + source.read()
        return
    plain = DigestReader()
    chunks = (plain.update(chunk) for chunk in _chunks(head, source))
    packed = writer.add_blob(compress_zstd(chunks), f"{LAYER_TYPE}+zstd")
    export.layers[member.name] = (packed, plain.digest)


def _chunks(head: bytes, source: IO[bytes]) -> Iterator[bytes]:
    yield head
    while chunk := source.read(CHUNK):
        yield chunk


def _finish(writer: ArchiveWriter, export: _Export, name: str) -> str:
    listed = parse_json(export.documents[DOCKER_MANIFEST_FILE])[0]
    text = export.documents[listed["Config"]]
    own = [export.layers[name] for name in listed["Layers"]]
    for (__, got), wanted in zip(own, parse_json(text)["rootfs"]["diff_ids"], strict=True):
        if got != wanted:
            what = _("the engine's store is damaged: {wanted} holds {got}").format(wanted=wanted, got=got)
            raise WorkFailed(what, next_step=_("remove the image and build it again"))
    config = create_descriptor(text, CONFIG_TYPE)
    body = create_image_manifest(config, [packed for packed, __ in own])
    manifest = create_descriptor(body, MANIFEST_TYPE)
    writer.add_file(format_blob_path(config.digest), text)
    writer.add_file(format_blob_path(manifest.digest), body)
    names = [format_blob_path(packed.digest) for packed, __ in own]
    writer.add_file(DOCKER_MANIFEST_FILE, create_docker_manifest(format_blob_path(config.digest), [name], names))
    writer.add_file(INDEX_FILE, create_archive_index(manifest, f"docker.io/{name}"))
    writer.finish()
    return manifest.digest
