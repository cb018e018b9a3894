"""The image for engines that cannot unpack zstd: what its layers hold, packed by gzip on this machine.

Such an engine calls an image by its configuration, which covers what every layer holds: it is the very same. What a
layer becomes is remembered, so that one is packed again only where a node lacks it.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlbox.cluster.image import SentImage
from rlbox.cluster.images import ImageSource, Tell
from rlbox.engine.oci import LAYER, Descriptor, encode_document, parse_manifest, sha256_digest
from rlbox.errors import EngineError, RlboxError
from rlbox.foreign import parse_json, whole_number
from rlbox.i18n import _
from rlbox.system.compression import ChunkReader, compress_gzip, decompress_layer
from rlbox.system.files import cache_path, write_atomic
from rlbox.system.process_table import read_text
from rlbox.system.progress import ProgressItem

_ROW, _GZIP = "gzip", f"{LAYER}+gzip"


class GzipSource:
    """An image with gzip in place of zstd; a layer that was packed before is packed again when a node wants it."""

    def __init__(self, source: ImageSource, image: SentImage) -> None:
        self._source, self._image = source, image
        self._kind, self._text, self._layers = _manifest(image)
        self._old = {layer.digest: layer for layer in self._layers if layer.media_type.endswith("zstd")}
        self._parts = {digest: part for digest in self._old if (part := _remembered(digest))}
        self._packing: set[str] = set()
        self._lock = threading.Lock()

    def known(self) -> SentImage | None:
        """Return the image where all of its layers were packed here before; none is read for that."""
        return self._made() if len(self._parts) == len(self._old) else None

    def image(self, tell: Tell) -> SentImage:
        """Return the image; it is as it was where no layer is zstd.

        Raises
        ------
        EngineError
            The engine here does not bring a layer, or a torn one.
        """
        if new := [layer for digest, layer in self._old.items() if digest not in self._parts]:
            for layer, part in _packed(self._source, new, tell):
                write_atomic(_memory(layer.digest), f"{part.digest} {part.size}\n")
                self._parts[layer.digest] = part
        return self._made()

    def blocks(self, digest: str, at: int, size: int) -> Iterator[bytes]:
        """Yield a part from a place on, as the engine brings it, or as it is packed."""
        layer = next((self._old[old] for old, part in self._parts.items() if part.digest == digest), None)
        if layer is None:
            yield from self._source.blocks(digest, at, size)
            return
        with self._lock:
            begins = not self._source.spool.has(digest) and digest not in self._packing
            self._packing |= {digest}
            if begins:
                self._source.spool.fail(None)
        if begins:
            threading.Thread(target=self._pack, args=(layer, digest), name="a layer by gzip", daemon=True).start()
        yield from self._source.given(digest, at, size)

    def _pack(self, layer: Descriptor, digest: str) -> None:
        failed: Exception | None = None
        try:
            self._source.spool.add(_gzip(self._source.blocks(layer.digest, 0, layer.size), layer), digest)
        except (RlboxError, OSError, ValueError) as error:
            _memory(layer.digest).unlink(missing_ok=True)
            failed = _torn(layer, error) if isinstance(error, ValueError) else error
        with self._lock:
            self._packing -= {digest}
            if failed:
                self._source.spool.fail(failed)

    def _made(self) -> SentImage:
        if not self._old:
            return self._image
        layers = [self._parts.get(layer.digest, layer) for layer in self._layers]
        manifest = {**parse_json(self._text), "layers": [layer.json() for layer in layers]}
        body = encode_document(manifest)
        known = {part.digest: part for part in (*self._image.parts, *layers)}
        used = [known[digest] for digest in dict.fromkeys((self._image.identity, *(layer.digest for layer in layers)))]
        return SentImage(
            digest=sha256_digest(body),
            identity=self._image.identity,
            manifests={sha256_digest(body): (self._kind, body.decode("utf-8"))},
            parts=tuple(used),
        )


def _manifest(image: SentImage) -> tuple[str, str, tuple[Descriptor, ...]]:
    """Return type, text and layers of the manifest that has the image's configuration."""
    known = [(kind, text, parse_manifest(text.encode("utf-8"), kind)) for kind, text in image.manifests.values()]
    return next(
        (kind, text, found.layers)
        for kind, text, found in known
        if found.config and found.config.digest == image.identity
    )


def _memory(digest: str) -> Path:
    return cache_path("gzip", digest.partition(":")[2])


def _remembered(digest: str) -> Descriptor | None:
    """Return what a layer became when it was packed here before."""
    words = read_text(_memory(digest)).split()
    if len(words) != 2 or (size := whole_number(words[1])) is None:
        return None
    return Descriptor(media_type=_GZIP, digest=words[0], size=size)


def _packed(source: ImageSource, layers: list[Descriptor], tell: Tell) -> Iterator[tuple[Descriptor, Descriptor]]:
    """Yield layers, each with what it is when packed by gzip."""
    source.want(layer.digest for layer in layers)
    total, done, ended = sum(layer.size for layer in layers), 0, threading.Event()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            for layer, new in zip(layers, pool.map(lambda one: _pack(source, one, ended), layers), strict=True):
                done += layer.size
                tell(ProgressItem(key=_ROW, title="packing by gzip", done=done, total=total))
                yield layer, new
        except BaseException as error:
            ended.set()  # what is at work still ends, also at Ctrl-C
            source.spool.fail(error if isinstance(error, Exception) else EngineError(_("the packing was ended")))
            raise
    tell(ProgressItem(key=_ROW, title="packing by gzip", mark="✓", told="packed", done=total))


def _pack(source: ImageSource, layer: Descriptor, ended: threading.Event) -> Descriptor:
    given = source.blocks(layer.digest, 0, layer.size)
    try:
        digest, size = source.spool.add(_gzip(itertools.takewhile(lambda block: not ended.is_set(), given), layer))
    except ValueError as error:
        raise _torn(layer, error) from error
    return Descriptor(media_type=_GZIP, digest=digest, size=size)


def _gzip(given: Iterator[bytes], layer: Descriptor) -> Iterator[bytes]:
    return compress_gzip(decompress_layer(ChunkReader(given), layer.media_type))


def _torn(layer: Descriptor, error: ValueError) -> EngineError:
    return EngineError(
        _("a layer of the image is torn in this machine's engine: {error}").format(error=error), where=layer.digest
    )
