"""The OCI archive of an image: names of its files, its index, tar entries, and the same archive under another name."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any, BinaryIO, cast

from rlbox.engine.oci import CONTAINERD_NAME_ANNOTATION, REF_NAME_ANNOTATION, Descriptor, create_index
from rlbox.engine.reference import shorten_image_name
from rlbox.foreign import parse_json
from rlbox.system.compression import CHUNK, ChunkReader, DigestReader

ByteCallback = Callable[[int], None]
INDEX_FILE = "index.json"
DOCKER_MANIFEST_FILE = "manifest.json"
BLOBS_DIR = "blobs/sha256/"


def format_blob_path(digest: str) -> str:
    return BLOBS_DIR + digest.removeprefix("sha256:")


def create_archive_index(manifest: Descriptor, image_name: str) -> bytes:
    names = {CONTAINERD_NAME_ANNOTATION: image_name, REF_NAME_ANNOTATION: image_name.rpartition(":")[2]}
    return create_index([replace(manifest, annotations=names)])


def create_docker_manifest(config_file: str, tags: Sequence[str], layer_files: Sequence[str]) -> bytes:
    """Return `manifest.json`, which `docker load` reads; `config_file` and `layer_files` are paths in the archive."""
    return json.dumps([{"Config": config_file, "RepoTags": list(tags), "Layers": list(layer_files)}]).encode()


def list_image_tags(manifests: Sequence[Descriptor]) -> tuple[str, ...]:
    return tuple(
        shorten_image_name(item.annotations[CONTAINERD_NAME_ANNOTATION])
        for item in manifests
        if _named(item.annotations)
    )


def _named(annotations: Mapping[str, str]) -> bool:
    return bool(annotations.get(CONTAINERD_NAME_ANNOTATION))


_MODE = 0o444
_TAR_BLOCK = tarfile.BLOCKSIZE


class ArchiveWriter:
    """Adds files to a tar: owner, mode and time are the same everywhere."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add_file(self, name: str, data: bytes) -> None:
        self._file.write(format_tar_file_header(name, len(data)) + data)
        self._pad(len(data))

    def add_blob(self, chunks: Iterable[bytes], media_type: str) -> Descriptor:
        """Add a blob whose size and digest are known only at its end, and return what points to it."""
        start = self._file.tell()
        self._file.write(bytes(_TAR_BLOCK))
        hashed = DigestReader()
        for chunk in chunks:
            self._file.write(hashed.update(chunk))
        self._pad(hashed.size)
        end = self._file.tell()
        self._file.seek(start)
        self._file.write(format_tar_file_header(format_blob_path(hashed.digest), hashed.size))
        self._file.seek(end)
        return Descriptor(media_type=media_type, digest=hashed.digest, size=hashed.size)

    def finish(self) -> None:
        self._file.write(bytes(2 * _TAR_BLOCK))

    def _pad(self, size: int) -> None:
        self._file.write(bytes(-size % _TAR_BLOCK))


def format_tar_file_header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, _MODE
    return info.tobuf(tarfile.GNU_FORMAT)


_BLOCK = tarfile.BLOCKSIZE


def rename_archive_image(chunks: Iterator[bytes], tag: str) -> Iterator[bytes]:
    """Yield an OCI archive in which its one image is called `tag`; not a byte of a blob changes.

    Raises tarfile.TarError: it is no tar, or is cut short.
    """
    with tarfile.open(fileobj=cast(IO[bytes], ChunkReader(chunks)), mode="r|", bufsize=CHUNK) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isreg() else None
            if file is None:
                yield member.tobuf(tarfile.GNU_FORMAT)
            elif change := _CHANGES.get(member.name):
                data = json.dumps(change(parse_json(file.read()), tag)).encode()
                yield from _padded(format_tar_file_header(member.name, len(data)), [data])
            else:
                yield from _padded(member.tobuf(tarfile.GNU_FORMAT), _pieces(file))
    yield bytes(2 * _BLOCK)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk


def _padded(header: bytes, chunks: Iterable[bytes]) -> Iterator[bytes]:
    yield header
    size = 0
    for chunk in chunks:
        size += len(chunk)
        yield chunk
    yield bytes(-size % _BLOCK)


def _renamed_index(index: dict[str, Any], tag: str) -> dict[str, Any]:
    names = {CONTAINERD_NAME_ANNOTATION: f"docker.io/{tag}", REF_NAME_ANNOTATION: tag.rpartition(":")[2]}
    manifests = [{**one, "annotations": {**one.get("annotations", {}), **names}} for one in index["manifests"]]
    return {**index, "manifests": manifests}


def _renamed_manifest(rows: list[dict[str, Any]], tag: str) -> list[dict[str, Any]]:
    return [{**row, "RepoTags": [tag]} for row in rows]


_CHANGES: dict[str, Any] = {INDEX_FILE: _renamed_index, DOCKER_MANIFEST_FILE: _renamed_manifest}
