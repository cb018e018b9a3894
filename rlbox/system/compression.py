"""The contents of image layers: unpacked from whatever they are compressed with, and compressed again."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import os
import sys
import zlib
from collections.abc import Iterator
from typing import BinaryIO, Protocol, cast

from rlbox.i18n import _

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd

CHUNK = 1 << 20
ZSTD_LEVEL = 3
GZIP_LEVEL = 4
_ZSTD = b"\x28\xb5\x2f\xfd"


class Readable(Protocol):
    def read(self, amount: int, /) -> bytes:
        """Return up to `amount` bytes; none at the end."""


def decompress_layer(source: Readable, media_type: str) -> Iterator[bytes]:
    """Yield the plain tar of a layer.

    What is packed is asked of its first bytes: an engine's containerd store keeps zstd under Docker's media type, too,
    which knows gzip alone, and loads it by its bytes.

    Raises
    ------
    ValueError
        The bytes are not whole, or not packed at all where the media type says that they are.
    """
    head = b""
    while len(head) < len(_ZSTD) and (more := source.read(len(_ZSTD) - len(head))):
        head += more
    known = ChunkReader(itertools.chain([head], iter(lambda: source.read(CHUNK), b"")))
    try:
        if head == _ZSTD:
            with zstd.ZstdFile(cast(BinaryIO, known)) as plain:
                yield from iter(lambda: plain.read(CHUNK), b"")
        elif media_type.endswith(("zstd", "gzip")):
            with gzip.GzipFile(fileobj=cast(BinaryIO, known), mode="rb") as unzipped:
                yield from iter(lambda: unzipped.read(CHUNK), b"")
        else:
            yield from iter(lambda: known.read(CHUNK), b"")
    except (zstd.ZstdError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            _("no {media_type} layer: {error}").format(media_type=media_type.rpartition(".")[2], error=error)
        ) from error


class ChunkReader:
    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, amount: int) -> bytes:
        """Return up to `amount` bytes; none at the end."""
        if not self._rest:
            self._rest = next(self._chunks, b"")
        head, self._rest = self._rest[:amount], self._rest[amount:]
        return head


class DigestReader:
    """Passes chunks on and knows their digest and size so far."""

    def __init__(self) -> None:
        self._hasher = hashlib.sha256()
        self.size = 0

    def update(self, chunk: bytes) -> bytes:
        self._hasher.update(chunk)
        self.size += len(chunk)
        return chunk

    @property
    def digest(self) -> str:
        return f"sha256:{self._hasher.hexdigest()}"


def compress_zstd(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the chunks compressed with zstd on all cores; how many there are does not change the bytes."""
    settings = zstd.CompressionParameter
    packer = zstd.ZstdCompressor(
        options={settings.compression_level: ZSTD_LEVEL, settings.nb_workers: os.cpu_count() or 1}
    )
    for chunk in chunks:
        yield packer.compress(chunk)
    yield packer.flush()


def compress_gzip(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the chunks compressed with gzip, without name and time stamp."""
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    for chunk in chunks:
        yield packer.compress(chunk)
    yield packer.flush()
