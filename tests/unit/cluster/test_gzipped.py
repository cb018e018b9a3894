"""An image for engines that know gzip alone: the same layers and configuration under another manifest."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from rlbox.cluster.act.gzipped import gzipped
from rlbox.cluster.act.images import ImageSource
from rlbox.cluster.act.spool import Spool
from rlbox.cluster.image import SentImage, unpacks_zstd
from rlbox.engine.oci import CONFIG, INDEX, LAYER, MANIFEST, Descriptor, document, sha256_of
from rlbox.errors import EngineError
from rlbox.files.act.compression import zstd_packed

PLAIN = random.Random(1).randbytes(3 << 20)


class Given:
    """What an engine would bring."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.spool = Spool(folder)
        self.wanted: set[str] = set()

    def want(self, digests: Iterable[str]) -> None:
        self.wanted |= {*digests}

    def blocks(self, digest: str, at: int, size: int) -> Iterator[bytes]:
        return self.spool.blocks(digest, at, size)

    def part(self, kind: str, data: bytes) -> Descriptor:
        digest, size = self.spool.add([data])
        return Descriptor(media_type=kind, digest=digest, size=size)


def image_of(given: Given, *layers: Descriptor) -> SentImage:
    config = given.part(CONFIG, b'{"rootfs": {}}')
    rows = [layer.json() for layer in layers]
    manifest = document({"schemaVersion": 2, "mediaType": MANIFEST, "config": config.json(), "layers": rows})
    index = document({"schemaVersion": 2, "mediaType": INDEX, "manifests": []})
    manifests = {sha256_of(text): (kind, text.decode()) for kind, text in ((INDEX, index), (MANIFEST, manifest))}
    return SentImage(
        digest=sha256_of(index), identity=config.digest, manifests=manifests, parts=(config, *layers, layers[0])
    )


def packed(folder: Path, told: list[str]) -> tuple[Given, SentImage, SentImage]:
    given = Given(folder)
    layers = given.part(f"{LAYER}+zstd", b"".join(zstd_packed(iter([PLAIN])))), given.part(f"{LAYER}+gzip", b"as it is")
    image = image_of(given, *layers)
    source = cast(ImageSource, given)
    return given, image, gzipped(source, image, lambda row: told.append(row.told or f"{row.done}"))


def test_layers_of_zstd_are_packed_by_gzip(tmp_path: Path) -> None:
    told: list[str] = []
    given, image, other = packed(tmp_path / "a", told)
    ((digest, (kind, text)),) = other.manifests.items()
    assert (digest, kind, other.identity) == (other.digest, MANIFEST, image.identity)
    assert sha256_of(text.encode()) == digest
    config, new, same = other.parts
    assert (config, same) == (image.parts[0], image.parts[2])
    assert gzip.decompress(given.spool.path(new.digest).read_bytes()) == PLAIN
    assert new.media_type == f"{LAYER}+gzip"
    assert new.size == given.spool.path(new.digest).stat().st_size
    assert given.wanted == {image.parts[1].digest}
    assert told == [f"{image.parts[1].size}", "packed"]


def test_the_bytes_are_the_same_each_time(tmp_path: Path) -> None:
    """What a node has of it stays good, whoever sends the rest."""
    assert packed(tmp_path / "a", [])[2] == packed(tmp_path / "b", [])[2]


def test_an_image_without_zstd_stays(tmp_path: Path) -> None:
    given = Given(tmp_path / "a")
    image = image_of(given, given.part(f"{LAYER}+gzip", b"as it is"))
    source = cast(Any, given)
    assert gzipped(source, image, lambda row: None) is image
    assert given.wanted == set()


def test_a_torn_layer_is_told_with_its_digest(tmp_path: Path) -> None:
    given = Given(tmp_path / "a")
    whole = b"".join(zstd_packed(iter([PLAIN])))
    torn = given.part(f"{LAYER}+zstd", whole[: len(whole) // 2])
    with pytest.raises(EngineError, match="is torn in this machine's engine") as told:
        gzipped(cast(ImageSource, given), image_of(given, torn), lambda row: None)
    assert told.value.where == torn.digest


def test_what_waits_ends_where_another_layer_cannot_be_packed(tmp_path: Path) -> None:
    """A worker waits for a part that no engine brings; the torn one beside it ends that at once."""
    given = Given(tmp_path / "a")
    never = Descriptor(media_type=f"{LAYER}+zstd", digest=f"sha256:{'0' * 64}", size=9)
    image = image_of(given, given.part(f"{LAYER}+zstd", b"not packed"), never)
    with pytest.raises(EngineError, match="is torn"):
        gzipped(cast(ImageSource, given), image, lambda row: None)


@pytest.mark.parametrize(
    ("version", "does"),
    [("20.10.24+dfsg1", False), ("19.03.15", False), ("23.0.1", True), ("26.1.5+dfsg1", True), ("", True), ("x", True)],
)
def test_engines_by_version(version: str, does: bool) -> None:
    assert unpacks_zstd(version) is does
