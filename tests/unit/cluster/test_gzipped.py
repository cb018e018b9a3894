"""An image for engines that know gzip alone: the same layers and configuration under another manifest."""

from __future__ import annotations

import errno
import gzip
import random
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from rlbox.cluster.image_sync import GzipSource, ImageSource, SentImage, unpacks_zstd
from rlbox.cluster.push_receiver import PushReceiver
from rlbox.engine.oci import CONFIG_TYPE, INDEX_TYPE, LAYER_TYPE, MANIFEST_TYPE, Descriptor, compute_digest, encode_json
from rlbox.errors import EngineError
from rlbox.system.compression import compress_zstd
from rlbox.system.files import cache_path

PLAIN = random.Random(1).randbytes(3 << 20)


class Given:
    """What an engine would bring."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.spool = PushReceiver(folder)
        self.wanted: set[str] = set()
        self.brought: list[str] = []

    def want(self, digests: Iterable[str]) -> None:
        self.wanted |= {*digests}

    def blocks(self, digest: str, at: int, size: int) -> Iterator[bytes]:
        self.brought.append(digest)
        return self.given(digest, at, size)

    def given(self, digest: str, at: int, size: int) -> Iterator[bytes]:
        return self.spool.blocks(digest, at, size)

    def part(self, kind: str, data: bytes) -> Descriptor:
        digest, size = self.spool.add([data])
        return Descriptor(media_type=kind, digest=digest, size=size)


@pytest.fixture(autouse=True)
def own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def gzipped(given: Given, image: SentImage, told: list[str] | None = None) -> SentImage:
    source = GzipSource(cast(ImageSource, given), image)
    return source.image(lambda row: (told if told is not None else []).append(row.status_text or f"{row.done_bytes}"))


def layers_of(given: Given) -> tuple[Descriptor, Descriptor]:
    zstd = b"".join(compress_zstd(iter([PLAIN])))
    return given.part(f"{LAYER_TYPE}+zstd", zstd), given.part(f"{LAYER_TYPE}+gzip", b"as it is")


def image_of(given: Given, *layers: Descriptor) -> SentImage:
    config = given.part(CONFIG_TYPE, b'{"rootfs": {}}')
    rows = [layer.to_json() for layer in layers]
    manifest = encode_json({"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config.to_json(), "layers": rows})
    index = encode_json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": []})
    manifests = {
        compute_digest(text): (kind, text.decode()) for kind, text in ((INDEX_TYPE, index), (MANIFEST_TYPE, manifest))
    }
    return SentImage(
        digest=compute_digest(index), identity=config.digest, manifests=manifests, parts=(config, *layers, layers[0])
    )


def test_layers_of_zstd_are_packed_by_gzip(tmp_path: Path) -> None:
    told: list[str] = []
    given = Given(tmp_path / "a")
    image = image_of(given, *layers_of(given))
    other = gzipped(given, image, told)
    ((digest, (kind, text)),) = other.manifests.items()
    assert (digest, kind, other.identity) == (other.digest, MANIFEST_TYPE, image.identity)
    assert compute_digest(text.encode()) == digest
    config, new, same = other.parts
    assert (config, same) == (image.parts[0], image.parts[2])
    assert gzip.decompress(given.spool.path(new.digest).read_bytes()) == PLAIN
    assert new.media_type == f"{LAYER_TYPE}+gzip"
    assert new.size == given.spool.path(new.digest).stat().st_size
    assert given.wanted == {image.parts[1].digest}
    assert told == [f"{image.parts[1].size}", "packed"]


def test_the_bytes_are_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a node has of it stays good, whoever sends the rest."""
    found = []
    for name in ("a", "b"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache-{name}"))
        given = Given(tmp_path / name)
        found.append(gzipped(given, image_of(given, *layers_of(given))))
    assert found[0] == found[1]


def test_a_full_disk_ends_the_waiting_for_a_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = Given(tmp_path / "a"), Given(tmp_path / "b")
    image = image_of(first, *layers_of(first))
    new = gzipped(first, image).parts[1]
    image_of(again, *layers_of(again))
    source = GzipSource(cast(ImageSource, again), image)

    def full(*words: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(again.spool, "add", full)
        with pytest.raises(OSError, match="no space left"):
            b"".join(source.blocks(new.digest, 0, new.size))
    assert gzip.decompress(b"".join(source.blocks(new.digest, 0, new.size))) == PLAIN  # asked again, it is packed


def test_what_was_packed_before_is_known_and_packed_again_for_who_wants_it(tmp_path: Path) -> None:
    first, again = Given(tmp_path / "a"), Given(tmp_path / "b")
    image = image_of(first, *layers_of(first))
    assert GzipSource(cast(ImageSource, first), image).known() is None
    packed = gzipped(first, image)
    image_of(again, *layers_of(again))
    source = GzipSource(cast(ImageSource, again), image)
    assert source.known() == packed == source.image(lambda row: None)
    assert (again.brought, again.wanted) == ([], set())  # no layer was read for that
    config, new, same = packed.parts
    with ThreadPoolExecutor(3) as pool:  # three nodes at once
        found = [*pool.map(lambda at: b"".join(source.blocks(new.digest, at, new.size)), (0, 0, 7))]
    assert gzip.decompress(found[0]) == PLAIN
    assert (found[1], found[2]) == (found[0], found[0][7:])
    assert again.brought == [image.parts[1].digest]
    assert b"".join(source.blocks(same.digest, 0, same.size)) == b"as it is"
    assert b"".join(source.blocks(config.digest, 0, config.size)) == b'{"rootfs": {}}'


def test_a_layer_that_is_packed_otherwise_now_is_told_and_known_no_more(tmp_path: Path) -> None:
    first, again = Given(tmp_path / "a"), Given(tmp_path / "b")
    image = image_of(first, *layers_of(first))
    new = gzipped(first, image).parts[1]
    image_of(again, *layers_of(again))
    wrong = Descriptor(media_type=new.media_type, digest=f"sha256:{'1' * 64}", size=new.size + 1)
    memory = cache_path("gzip", image.parts[1].digest.partition(":")[2])
    memory.write_text(f"{wrong.digest} {wrong.size}\n")
    source = GzipSource(cast(ImageSource, again), image)
    with pytest.raises(EngineError, match="otherwise than before"):
        b"".join(source.blocks(wrong.digest, 0, wrong.size))
    assert GzipSource(cast(ImageSource, again), image).known() is None
    assert gzipped(again, image).parts[1] == new


@pytest.mark.parametrize("text", ["", "sha256:1", "sha256:1 x", "\0 \0 \0"])
def test_a_torn_memory_is_none(text: str, tmp_path: Path) -> None:
    given = Given(tmp_path / "a")
    image = image_of(given, *layers_of(given))
    memory = cache_path("gzip", image.parts[1].digest.partition(":")[2])
    memory.parent.mkdir(parents=True)
    memory.write_text(text)
    assert GzipSource(cast(ImageSource, given), image).known() is None


def test_an_image_without_zstd_stays(tmp_path: Path) -> None:
    given = Given(tmp_path / "a")
    image = image_of(given, given.part(f"{LAYER_TYPE}+gzip", b"as it is"))
    assert gzipped(given, image) is image
    assert given.wanted == set()


def test_a_torn_layer_is_told_with_its_digest(tmp_path: Path) -> None:
    given = Given(tmp_path / "a")
    whole = b"".join(compress_zstd(iter([PLAIN])))
    torn = given.part(f"{LAYER_TYPE}+zstd", whole[: len(whole) // 2])
    with pytest.raises(EngineError, match="is torn in this machine's engine") as told:
        gzipped(given, image_of(given, torn))
    assert told.value.where == torn.digest


def test_what_waits_ends_where_another_layer_cannot_be_packed(tmp_path: Path) -> None:
    """A worker waits for a part that no engine brings; the torn one beside it ends that at once."""
    given = Given(tmp_path / "a")
    never = Descriptor(media_type=f"{LAYER_TYPE}+zstd", digest=f"sha256:{'0' * 64}", size=9)
    image = image_of(given, given.part(f"{LAYER_TYPE}+zstd", b"not packed"), never)
    with pytest.raises(EngineError, match="is torn"):
        gzipped(given, image)


@pytest.mark.parametrize(
    ("version", "does"),
    [("20.10.24+dfsg1", False), ("19.03.15", False), ("23.0.1", True), ("26.1.5+dfsg1", True), ("", True), ("x", True)],
)
def test_engines_by_version(version: str, does: bool) -> None:
    assert unpacks_zstd(version) is does
