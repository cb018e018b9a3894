"""The OCI archive of an image: names of its files, its index, tar entries, and the same archive under another name."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any, BinaryIO, cast

from rlbox.engine.oci import CONTAINERD_NAME, REF_NAME, Descriptor, create_index
from rlbox.engine.reference import short_image_name
from rlbox.foreign import parse_json
from rlbox.system.compression import CHUNK, ChunkReader, DigestReader

ByteCallback = Callable[[int], None]
INDEX_FILE = "index.json"
DOCKER_MANIFEST_FILE = "manifest.json"
BLOBS = "blobs/sha256/"


def blob_name(digest: str) -> str:
    return BLOBS + digest.removeprefix("sha256:")


def archive_index(manifest: Descriptor, full_name: str) -> bytes:
    names = {CONTAINERD_NAME: full_name, REF_NAME: full_name.rpartition(":")[2]}
    return create_index([replace(manifest, annotations=names)])


def docker_manifest(config: str, tags: Sequence[str], layers: Sequence[str]) -> bytes:
    """Return `manifest.json`, which `docker load` reads; `config` and `layers` are names of files in the archive."""
    return json.dumps([{"Config": config, "RepoTags": list(tags), "Layers": list(layers)}]).encode()


def archive_tags(manifests: Sequence[Descriptor]) -> tuple[str, ...]:
    return tuple(short_image_name(item.annotations[CONTAINERD_NAME]) for item in manifests if _named(item.annotations))


def _named(annotations: Mapping[str, str]) -> bool:
    return bool(annotations.get(CONTAINERD_NAME))


_MODE = 0o444
_TAR_BLOCK = tarfile.BLOCKSIZE


class ArchiveWriter:
    """Adds files to a tar: owner, mode and time are the same everywhere."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add(self, name: str, data: bytes) -> None:
        self._file.write(tar_file_header(name, len(data)) + data)
        self._pad(len(data))

    def add_stream(self, chunks: Iterable[bytes], media_type: str) -> Descriptor:
        """Add a blob whose size and digest are known only at its end, and return what points to it."""
        start = self._file.tell()
        self._file.write(bytes(_TAR_BLOCK))
        hashed = DigestReader()
        for chunk in chunks:
            self._file.write(hashed.update(chunk))
        self._pad(hashed.size)
        end = self._file.tell()
        self._file.seek(start)
        self._file.write(tar_file_header(blob_name(hashed.digest), hashed.size))
        self._file.seek(end)
        return Descriptor(media_type=media_type, digest=hashed.digest, size=hashed.size)

    def finish(self) -> None:
        self._file.write(bytes(2 * _TAR_BLOCK))

    def _pad(self, size: int) -> None:
        self._file.write(bytes(-size % _TAR_BLOCK))


def tar_file_header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, _MODE
    return info.tobuf(tarfile.GNU_FORMAT)


_BLOCK = tarfile.BLOCKSIZE


def rename_image(chunks: Iterator[bytes], tag: str) -> Iterator[bytes]:
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
                yield from _padded(tar_file_header(member.name, len(data)), [data])
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
    names = {CONTAINERD_NAME: f"docker.io/{tag}", REF_NAME: tag.rpartition(":")[2]}
    manifests = [{**one, "annotations": {**one.get("annotations", {}), **names}} for one in index["manifests"]]
    return {**index, "manifests": manifests}


def _renamed_manifest(rows: list[dict[str, Any]], tag: str) -> list[dict[str, Any]]:
    return [{**row, "RepoTags": [tag]} for row in rows]


_CHANGES: dict[str, Any] = {INDEX_FILE: _renamed_index, DOCKER_MANIFEST_FILE: _renamed_manifest}
