"""The image for engines that cannot unpack zstd: what its layers hold, packed by gzip on this machine.

Such an engine calls an image by its configuration, which covers what every layer holds: it is the very same.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from rlbox.cluster.act.images import ImageSource, Tell
from rlbox.cluster.image import SentImage
from rlbox.engine.oci import LAYER, Descriptor, document, parse_manifest, sha256_of
from rlbox.errors import EngineError, RlboxError
from rlbox.files.act.compression import Chunks, gzip_packed, unpacked
from rlbox.files.act.progress import Row
from rlbox.foreign import parse_json

_ROW = "gzip"


def gzipped(source: ImageSource, image: SentImage, tell: Tell) -> SentImage:
    """Return the image with gzip in place of zstd, its parts ready to be given; as it is where no layer is zstd.

    Raises
    ------
    EngineError
        The engine here does not bring a layer, or a torn one.
    """
    kind, text, layers = _manifest(image)
    old = [layer for layer in layers if layer.media_type.endswith("zstd")]
    if not old:
        return image
    parts = {part.digest: part for part in image.parts} | _packed(source, old, tell)
    manifest = parse_json(text)
    manifest["layers"] = [parts[layer.digest].json() for layer in layers]
    body = document(manifest)
    used = [parts[digest] for digest in dict.fromkeys((image.identity, *(layer.digest for layer in layers)))]
    return SentImage(
        digest=sha256_of(body),
        identity=image.identity,
        manifests={sha256_of(body): (kind, body.decode("utf-8"))},
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


def _packed(source: ImageSource, layers: list[Descriptor], tell: Tell) -> dict[str, Descriptor]:
    """Return what layers are when packed by gzip, by what they were."""
    source.want(layer.digest for layer in layers)
    total, done, ended = sum(layer.size for layer in layers), 0, threading.Event()
    parts = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            for layer, new in zip(layers, pool.map(lambda one: _pack(source, one, ended), layers), strict=True):
                done += layer.size
                tell(Row(key=_ROW, title="packing by gzip", done=done, total=total))
                parts[layer.digest] = new
        except BaseException as error:
            ended.set()  # what is at work still ends, also at Ctrl-C
            source.spool.fail(error if isinstance(error, RlboxError) else EngineError("the packing was ended"))
            raise
    tell(Row(key=_ROW, title="packing by gzip", mark="✓", told="packed", done=total))
    return parts


def _pack(source: ImageSource, layer: Descriptor, ended: threading.Event) -> Descriptor:
    try:
        digest, size = source.spool.add(gzip_packed(unpacked(Chunks(_blocks(source, layer, ended)), layer.media_type)))
    except ValueError as error:
        raise EngineError(
            f"a layer of the image is torn in this machine's engine: {error}",
            where=layer.digest,
            next_step="rlbox build TARGET --rebuild",
        ) from error
    return Descriptor(media_type=f"{LAYER}+gzip", digest=digest, size=size)


def _blocks(source: ImageSource, layer: Descriptor, ended: threading.Event) -> Iterator[bytes]:
    for block in source.blocks(layer.digest, 0, layer.size):
        if ended.is_set():
            return
        yield block
