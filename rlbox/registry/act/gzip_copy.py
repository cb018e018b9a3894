"""A second tag with gzip layers, for engines that cannot unpack zstd.

Docker 20.10 pulls such an image and then says `archive/tar: invalid tar header`; 23 was the first to unpack zstd. The
configuration stays the same blob, and the layers' contents are checked against the digests in it.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import IO

from rlbox.engine.oci import LAYER, MANIFEST, Descriptor, Manifest, image_manifest, sha256_of
from rlbox.errors import RegistryError
from rlbox.files.act.compression import Chunks, Hashed, gzipped, unpacked
from rlbox.registry.act.client import Registry

SAME_AS = "rlbox.same-as"
SUFFIX = "-gzip"


def needs_copy(manifest: Manifest) -> bool:
    """Return whether a layer is compressed with zstd."""
    return any(layer.media_type.endswith("zstd") for layer in manifest.layers)


def push_gzip_copy(registry: Registry, repository: str, tag: str, manifest: Manifest) -> str:
    """Put the image `manifest` under `TAG-gzip` with gzip layers and return the digest of that manifest.

    Nothing is done when that tag was made from the same image before.

    Raises
    ------
    RegistryError
        The registry refused, or a layer's contents are not what the image's configuration says.
    """
    copy_tag = tag + SUFFIX
    before = registry.find_manifest(repository, copy_tag)
    if before and before.annotations.get(SAME_AS) == manifest.digest:
        return before.digest
    config = manifest.config
    if config is None:
        raise RegistryError(f"{manifest.digest} is no image", where=f"{registry.host}/{repository}")
    contents = _contents(registry, repository, config)
    layers = [
        _copy(registry, repository, layer, content) if layer.media_type.endswith("zstd") else layer
        for layer, content in zip(manifest.layers, contents, strict=True)
    ]
    body = image_manifest(config, layers, {SAME_AS: manifest.digest})
    registry.put_manifest(repository, copy_tag, body, MANIFEST)
    return sha256_of(body)


def _contents(registry: Registry, repository: str, config: Descriptor) -> list[str]:
    def read() -> bytes:
        with registry.open_blob(repository, config.digest) as (_, chunks):
            return b"".join(chunks)

    return list(json.loads(registry.retry(read))["rootfs"]["diff_ids"])


def _copy(registry: Registry, repository: str, layer: Descriptor, content: str) -> Descriptor:
    """Upload the layer compressed anew and return what points to it."""
    with tempfile.NamedTemporaryFile(prefix="rlbox-layer-") as scratch:
        copy = replace(layer, media_type=f"{LAYER}+gzip")
        plain, packed = registry.retry(lambda: _repack(registry, repository, layer, scratch))
        if plain.digest != content:
            what = f"layer {layer.digest} holds {plain.digest}; the image says {content}"
            raise RegistryError(what, where=f"{registry.host}/{repository}")
        copy = replace(copy, digest=packed.digest, size=packed.size)
        registry.put_blob(repository, copy, Path(scratch.name))
    return copy


def _repack(registry: Registry, repository: str, layer: Descriptor, file: IO[bytes]) -> tuple[Hashed, Hashed]:
    file.seek(0)
    file.truncate()
    plain, packed = Hashed(), Hashed()
    with registry.open_blob(repository, layer.digest) as (_, chunks):
        contents = (plain.take(chunk) for chunk in unpacked(Chunks(chunks), layer.media_type))
        for chunk in gzipped(contents):
            file.write(packed.take(chunk))
    file.flush()
    return plain, packed
