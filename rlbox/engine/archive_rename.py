"""An archive under another name: the same image, called as the engine that it goes to is to call it."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable, Iterator
from typing import IO, Any, cast

from rlbox.engine.archive_parts import DOCKER_MANIFEST_FILE, INDEX_FILE
from rlbox.engine.archive_write import file_header
from rlbox.engine.oci import CONTAINERD_NAME, REF_NAME
from rlbox.foreign import parse_json
from rlbox.system.compression import CHUNK, ChunkReader

_BLOCK = tarfile.BLOCKSIZE


def renamed(chunks: Iterator[bytes], tag: str) -> Iterator[bytes]:
    """Yield an OCI archive in which its one image is called `tag`; not a byte of a blob changes.

    Raises
    ------
    tarfile.TarError
        It is no tar, or is cut short.
    """
    with tarfile.open(fileobj=cast(IO[bytes], ChunkReader(chunks)), mode="r|", bufsize=CHUNK) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isreg() else None
            if file is None:
                yield member.tobuf(tarfile.GNU_FORMAT)
            elif change := _CHANGES.get(member.name):
                data = json.dumps(change(parse_json(file.read()), tag)).encode()
                yield from _padded(file_header(member.name, len(data)), [data])
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


def _index(index: dict[str, Any], tag: str) -> dict[str, Any]:
    names = {CONTAINERD_NAME: f"docker.io/{tag}", REF_NAME: tag.rpartition(":")[2]}
    manifests = [{**one, "annotations": {**one.get("annotations", {}), **names}} for one in index["manifests"]]
    return {**index, "manifests": manifests}


def _listing(rows: list[dict[str, Any]], tag: str) -> list[dict[str, Any]]:
    return [{**row, "RepoTags": [tag]} for row in rows]


_CHANGES: dict[str, Any] = {INDEX_FILE: _index, DOCKER_MANIFEST_FILE: _listing}
