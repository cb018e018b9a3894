"""Archives: written whole or not at all, and proven before an engine sees them."""

from __future__ import annotations

import fcntl
import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlbox.engine import archive_load as load
from rlbox.engine.archive_format import (
    DOCKER_MANIFEST_FILE,
    INDEX_FILE,
    ArchiveWriter,
    create_archive_index,
    create_docker_manifest,
    format_blob_path,
    rename_archive_image,
)
from rlbox.engine.archive_load import convert_to_docker_archive, read_verified_archive
from rlbox.engine.archive_save import write_zstd_archive
from rlbox.engine.oci import (
    CONFIG_TYPE,
    LAYER_TYPE,
    LAYOUT,
    LAYOUT_FILE,
    MANIFEST_TYPE,
    compute_digest,
    create_descriptor,
    create_image_manifest,
)
from rlbox.errors import LockHeld, NodeError, WorkFailed
from rlbox.system.compression import ChunkReader, compress_zstd, decompress_layer, zstd
from rlbox.system.files import open_atomic

CONTENTS = (b"first layer" * 90_000, b"second")
NAME = "docker.io/rlbox/mine:latest"
AGAIN = "copy the archive again, or write it again with `rlbox save`; nothing was loaded"


def pack(data: bytes, kind: str) -> bytes:
    if kind == "zstd":
        return zstd.compress(data)
    return gzip.compress(data, mtime=0) if kind == "gzip" else data


def blobs_of(kind: str = "zstd", contents: tuple[bytes, ...] = CONTENTS) -> dict[str, bytes]:
    """Return the files of an archive, by name."""
    config = json.dumps({"rootfs": {"diff_ids": [compute_digest(data) for data in CONTENTS]}}).encode()
    media = LAYER_TYPE if kind == "plain" else f"{LAYER_TYPE}+{kind}"
    layers = [pack(data, kind) for data in contents]
    body = create_image_manifest(
        create_descriptor(config, CONFIG_TYPE), [create_descriptor(layer, media) for layer in layers]
    )
    stored = {format_blob_path(compute_digest(data)): data for data in (config, body, *layers)}
    return {
        LAYOUT_FILE: LAYOUT,
        INDEX_FILE: create_archive_index(create_descriptor(body, MANIFEST_TYPE), NAME),
        **stored,
    }


def write(path: Path, files: dict[str, bytes]) -> Path:
    with open(path, "wb") as file:
        writer = ArchiveWriter(file)
        for name, data in files.items():
            writer.add_file(name, data)
        writer.finish()
    return path


def refusal(path: Path) -> tuple[str, str, str]:
    with pytest.raises(WorkFailed) as error:
        read_verified_archive(path)
    return error.value.what, error.value.where, error.value.next_step


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return write(tmp_path / "x.tar", blobs_of())


def largest(files: dict[str, bytes]) -> str:
    return max((name for name in files if name.startswith("blobs/")), key=lambda name: len(files[name]))


def test_an_archive_is_given_another_name(archive: Path, tmp_path: Path) -> None:
    """Not a byte of a blob changes, and of the index the names alone; what goes in small pieces comes out whole."""
    data = archive.read_bytes()
    pieces = (data[start : start + 1000] for start in range(0, len(data), 1000))
    other = tmp_path / "other.tar"
    other.write_bytes(b"".join(rename_archive_image(pieces, "rlbox/mine:work-0a1b2c")))
    before, after = read_verified_archive(archive), read_verified_archive(other)
    assert after.tags == ("rlbox/mine:work-0a1b2c",)
    assert after.manifests == before.manifests
    assert {digest: after.read_blob(digest) for digest in after.blobs} == {
        digest: before.read_blob(digest) for digest in before.blobs
    }
    back = b"".join(rename_archive_image(iter([other.read_bytes()]), "rlbox/mine:latest"))
    assert back == b"".join(rename_archive_image(iter([data]), "rlbox/mine:latest"))


def test_docker_reads_the_other_name_too(tmp_path: Path) -> None:
    listed = {DOCKER_MANIFEST_FILE: create_docker_manifest("c", ["rlbox/mine:latest"], ["l"])}
    data = write(tmp_path / "x.tar", blobs_of() | listed).read_bytes()
    with tarfile.open(fileobj=io.BytesIO(b"".join(rename_archive_image(iter([data]), "rlbox/mine:new")))) as tar:
        file = tar.extractfile(DOCKER_MANIFEST_FILE)
        assert file is not None
        assert json.load(file) == [{"Config": "c", "RepoTags": ["rlbox/mine:new"], "Layers": ["l"]}]


def test_what_is_cut_gets_no_name(archive: Path) -> None:
    with pytest.raises(tarfile.TarError):
        b"".join(rename_archive_image(iter([archive.read_bytes()[:700]]), "rlbox/mine:new"))


def test_a_whole_archive(archive: Path) -> None:
    counted: list[int] = []
    read = read_verified_archive(archive, counted.append)
    assert read.tags == ("rlbox/mine:latest",)
    assert [len(manifest.layers) for manifest in read.manifests] == [2]
    assert sum(counted) == sum(size for _, size in read.blobs.values())
    assert read.read_blob(read.manifests[0].digest) == read.manifests[0].body
    with tarfile.open(archive) as tar:
        facts = {(item.uid, item.gid, item.mtime, item.mode, item.type) for item in tar}
    assert facts == {(0, 0, 0, 0o444, tarfile.REGTYPE)}


def test_a_flipped_byte_names_the_blob(archive: Path) -> None:
    name = largest(blobs_of())
    data = bytearray(archive.read_bytes())
    with tarfile.open(archive) as tar:
        data[tar.getmember(name).offset_data + 5] ^= 1
    archive.write_bytes(data)
    what, where, step = refusal(archive)
    assert what.startswith(f"blob sha256:{name[13:]} is damaged: its bytes are sha256:")
    assert (where, step) == (str(archive), AGAIN)


def test_a_cut_names_the_blob(archive: Path) -> None:
    files = blobs_of()
    name = largest(files)
    with tarfile.open(archive) as tar:
        cut = tar.getmember(name).offset_data + 10
    archive.write_bytes(archive.read_bytes()[:cut])
    assert refusal(archive) == (f"the archive is cut short in blob sha256:{name[13:]}", str(archive), AGAIN)


def test_a_missing_blob_is_named(tmp_path: Path) -> None:
    files = blobs_of()
    name = largest(files)
    del files[name]
    assert refusal(write(tmp_path / "x.tar", files))[0] == f"blob sha256:{name[13:]} is missing"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "this is no OCI archive: it has no index.json, or is cut short"),
        (b"<html>" * 500, "the archive is cut short in blob its beginning"),
    ],
)
def test_no_archive(data: bytes, what: str, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(data)
    assert refusal(tmp_path / "x.tar")[0] in (
        what,
        "this is no archive: invalid header",
        "this is no archive: empty file",
    )


def test_an_archive_of_dockers_own(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", {"manifest.json": b"[]"})
    assert refusal(path)[2] == f"docker load --input {path}"


# ---- for engines that load no OCI archive -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["zstd", "gzip", "plain"])
def test_plain_layers_for_an_older_engine(kind: str, tmp_path: Path) -> None:
    read = read_verified_archive(write(tmp_path / "x.tar", blobs_of(kind)))
    data = b"".join(convert_to_docker_archive(read, read.manifests[0], "rlbox/mine:latest", lambda count: None))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        files = {item.name: tar.extractfile(item).read() for item in tar}  # type: ignore[union-attr]
    (listed,) = json.loads(files["manifest.json"])
    assert listed["RepoTags"] == ["rlbox/mine:latest"]
    assert [files[name] for name in listed["Layers"]] == list(CONTENTS)
    config = read.manifests[0].config
    assert config is not None
    assert listed["Config"] == config.digest[7:] + ".json"
    assert compute_digest(files[listed["Config"]]) == config.digest


def test_a_layer_that_cannot_be_unpacked(tmp_path: Path) -> None:
    files = blobs_of("zstd")
    config = next(data for data in files.values() if data.startswith(b'{"rootfs"'))
    layers = [create_descriptor(b"no zstd", f"{LAYER_TYPE}+zstd"), create_descriptor(b"none", f"{LAYER_TYPE}+zstd")]
    body = create_image_manifest(create_descriptor(config, CONFIG_TYPE), layers)
    wrong = {format_blob_path(compute_digest(data)): data for data in (config, body, b"no zstd", b"none")}
    read = read_verified_archive(
        write(
            tmp_path / "x.tar",
            {INDEX_FILE: create_archive_index(create_descriptor(body, MANIFEST_TYPE), NAME), **wrong},
        )
    )
    with pytest.raises(WorkFailed, match=r"cannot be unpacked: no tar\+zstd layer"):
        convert_to_docker_archive(read, read.manifests[0], "x", lambda count: None)


def test_packing_gives_the_same_bytes_again() -> None:
    data = [bytes(range(256)) * 4096] * 5
    first, second = (b"".join(compress_zstd(iter(data))) for _ in range(2))
    assert first == second
    for packed, kind in ((first, "zstd"), (gzip.compress(b"".join(data)), "gzip")):
        parts = ChunkReader(iter([packed[:100], packed[100:]]))
        assert b"".join(decompress_layer(parts, f"{LAYER_TYPE}+{kind}")) == b"".join(data)
    # as an engine with the containerd store exports a layer under Docker's media type
    named = "application/vnd.docker.image.rootfs.diff.tar.gzip"
    assert b"".join(decompress_layer(ChunkReader(iter([first[:2], first[2:]])), named)) == b"".join(data)


def test_a_truncated_layer_is_met() -> None:
    data = gzip.compress(b"x" * 10_000)
    with pytest.raises(ValueError, match="no tar\\+gzip layer"):
        list(decompress_layer(ChunkReader(iter([data[: len(data) // 2]])), f"{LAYER_TYPE}+gzip"))


# ---- writing ------------------------------------------------------------------------------------------------------


def fill(path: Path, data: bytes = b"new", need: int = 0, then: Callable[[], object] = lambda: None) -> None:
    with open_atomic(path, need) as file:
        file.write(data)
        then()


def fail() -> None:
    raise RuntimeError


def fill_up() -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        full.write(b"x")


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError):
        fill(path, b"half", then=fail)
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["x.tar"]
    fill(path, b"new")
    assert path.read_bytes() == b"new"


def test_two_at_once(tmp_path: Path) -> None:
    with open(tmp_path / "x.tar.part", "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        told = "another rlbox writes this archive: holder unknown\n"
        with pytest.raises(LockHeld, match=told):
            fill(tmp_path / "x.tar")


def test_too_little_room(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match=r"the disk is too full: [0-9.]+ GB free, 1000.0 PB needed"):
        fill(tmp_path / "x.tar", need=10**18)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="the archive cannot be written: No space left on device") as error:
        fill(tmp_path / "x.tar", then=fill_up)
    assert error.value.where == str(tmp_path / "x.tar.part")
    assert list(tmp_path.iterdir()) == []


# ---- engines that fail ----------------------------------------------------------------------------------------------


def test_an_engine_whose_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "write /var/lib/docker/x: no space left on device"
    monkeypatch.setattr(load, "connect_engine", lambda: SimpleNamespace(load_image=lambda chunks: [{"error": words}]))
    with pytest.raises(NodeError, match="the engine's disk is full") as full:
        load._send(iter(()))
    assert full.value.next_step == "free space there, then repeat"


def test_an_engine_whose_store_is_damaged() -> None:
    config = json.dumps({"rootfs": {"diff_ids": [compute_digest(b"first")]}}).encode()
    files = {
        "layer.tar": b"another",
        "config.json": config,
        "manifest.json": json.dumps([{"Config": "config.json", "Layers": ["layer.tar"]}]).encode(),
    }
    with pytest.raises(WorkFailed, match="the engine's store is damaged") as damaged:
        write_zstd_archive(io.BytesIO(), "rlbox/mine:latest", iter([tar_of(files)]))
    assert damaged.value.next_step == "remove the image and build it again"


def tar_of(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()
