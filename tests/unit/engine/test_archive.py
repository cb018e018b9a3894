"""Archives: written whole or not at all, and verified before an engine sees them."""

from __future__ import annotations

import fcntl
import gzip
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from registry_server import CONFIG_TYPE, LAYER_TYPE, create_image_manifest, descriptor_to_json

from rlbox.engine import archive
from rlbox.engine.archive import (
    BLOBS_DIR,
    DOCKER_MANIFEST_FILE,
    INDEX_FILE,
    read_blob,
    read_verified_archive,
    rename_image_in_oci_archive,
    save_image_archive,
    stream_as_docker_archive,
)
from rlbox.engine.oci import (
    CONTAINERD_NAME_ANNOTATION,
    LAYOUT,
    LAYOUT_FILE,
    MANIFEST_TYPE,
    Descriptor,
    compute_sha256_digest,
    create_descriptor,
)
from rlbox.errors import LockHeld, MachineError, WorkFailed
from rlbox.system.compression import zstd
from rlbox.system.files import open_locked_atomic

LAYERS = (b"first layer" * 90_000, b"second")
NAME = "docker.io/rlbox/mine:latest"
AGAIN = "copy the archive again, or write it again with `rlbox save`; nothing was loaded"


def create_index(manifest: Descriptor) -> bytes:
    return json.dumps({"schemaVersion": 2, "manifests": [descriptor_to_json(manifest)]}).encode()


def make_files() -> dict[str, bytes]:
    """Return the files of an archive, by name."""
    config = json.dumps({"rootfs": {"diff_ids": [compute_sha256_digest(data) for data in LAYERS]}}).encode()
    layers = [create_descriptor(layer, LAYER_TYPE) for layer in LAYERS]
    body = create_image_manifest(create_descriptor(config, CONFIG_TYPE), layers)
    named = replace(create_descriptor(body, MANIFEST_TYPE), annotations={CONTAINERD_NAME_ANNOTATION: NAME})
    stored = {f"{BLOBS_DIR}{compute_sha256_digest(data)[7:]}": data for data in (config, body, *LAYERS)}
    return {LAYOUT_FILE: LAYOUT, INDEX_FILE: create_index(named), **stored}


def pack(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def write(path: Path, files: dict[str, bytes]) -> Path:
    path.write_bytes(pack(files))
    return path


def refusal(path: Path) -> tuple[str, str, str]:
    with pytest.raises(WorkFailed) as error:
        read_verified_archive(path)
    return error.value.what, error.value.where, error.value.next_step


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "x.tar", make_files())


def largest(files: dict[str, bytes]) -> str:
    return max((name for name in files if name.startswith("blobs/")), key=lambda name: len(files[name]))


def test_an_archive_is_given_another_name(file: Path, tmp_path: Path) -> None:
    """Not a byte of a blob changes, and of the index the names alone; what goes in small pieces comes out whole."""
    data = file.read_bytes()
    pieces = (data[start : start + 1000] for start in range(0, len(data), 1000))
    other = tmp_path / "other.tar"
    other.write_bytes(b"".join(rename_image_in_oci_archive(pieces, "rlbox/mine:work-0a1b2c")))
    before, after = read_verified_archive(file), read_verified_archive(other)
    assert after.tags == ("rlbox/mine:work-0a1b2c",)
    assert after.manifests == before.manifests
    assert {digest: read_blob(after, digest) for digest in after.blobs} == {
        digest: read_blob(before, digest) for digest in before.blobs
    }
    back = b"".join(rename_image_in_oci_archive(iter([other.read_bytes()]), "rlbox/mine:latest"))
    assert back == b"".join(rename_image_in_oci_archive(iter([data]), "rlbox/mine:latest"))


def test_docker_reads_the_other_name_too(tmp_path: Path) -> None:
    listed = {DOCKER_MANIFEST_FILE: b'[{"Config": "c", "RepoTags": ["rlbox/mine:latest"], "Layers": ["l"]}]'}
    data = write(tmp_path / "x.tar", make_files() | listed).read_bytes()
    with tarfile.open(fileobj=io.BytesIO(b"".join(rename_image_in_oci_archive(iter([data]), "rlbox/mine:new")))) as tar:
        manifest = tar.extractfile(DOCKER_MANIFEST_FILE)
        assert manifest is not None
        assert json.load(manifest) == [{"Config": "c", "RepoTags": ["rlbox/mine:new"], "Layers": ["l"]}]


def test_what_is_cut_gets_no_name(file: Path) -> None:
    with pytest.raises(tarfile.TarError):
        b"".join(rename_image_in_oci_archive(iter([file.read_bytes()[:700]]), "rlbox/mine:new"))


def test_a_whole_archive(file: Path) -> None:
    counted: list[int] = []
    read = read_verified_archive(file, counted.append)
    assert read.tags == ("rlbox/mine:latest",)
    assert [len(manifest.layers) for manifest in read.manifests] == [2]
    assert sum(counted) == sum(size for _, size in read.blobs.values())
    assert read_blob(read, read.manifests[0].digest) == read.manifests[0].body


def test_a_flipped_byte_names_the_blob(file: Path) -> None:
    name = largest(make_files())
    data = bytearray(file.read_bytes())
    with tarfile.open(file) as tar:
        data[tar.getmember(name).offset_data + 5] ^= 1
    file.write_bytes(data)
    what, where, step = refusal(file)
    assert what.startswith(f"blob sha256:{name[13:]} is damaged: its bytes are sha256:")
    assert (where, step) == (str(file), AGAIN)


def test_a_cut_archive_is_refused(file: Path) -> None:
    with tarfile.open(file) as tar:
        cut = tar.getmember(largest(make_files())).offset_data + 10
    file.write_bytes(file.read_bytes()[:cut])
    what, where, step = refusal(file)
    assert (what.startswith("this is not an archive, or it is truncated: "), where, step) == (True, str(file), AGAIN)


def test_a_missing_blob_is_named(tmp_path: Path) -> None:
    files = make_files()
    name = largest(files)
    del files[name]
    assert refusal(write(tmp_path / "x.tar", files))[0] == f"blob sha256:{name[13:]} is missing"


@pytest.mark.parametrize("data", [b"", b"<html>" * 500])
def test_no_archive(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(data)
    assert "is no" in refusal(tmp_path / "x.tar")[0]


def test_an_archive_of_dockers_own(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", {"manifest.json": b"[]"})
    assert refusal(path)[2] == f"docker load --input {path}"


# ---- writing ------------------------------------------------------------------------------------------------------


def fill(path: Path, data: bytes = b"new", need: int = 0, then: Callable[[], object] = lambda: None) -> None:
    with open_locked_atomic(path, need) as file:
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
        told = "another rlbox is busy with the archive: holder unknown\n"
        with pytest.raises(LockHeld, match=told):
            fill(tmp_path / "x.tar")


def test_too_little_room(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"the disk is too full: [0-9.]+ GB free, 1000.0 PB needed"):
        fill(tmp_path / "x.tar", need=10**18)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="the archive cannot be written: No space left on device") as error:
        fill(tmp_path / "x.tar", then=fill_up)
    assert error.value.where == str(tmp_path / "x.tar.part")
    assert list(tmp_path.iterdir()) == []


# ---- engines that fail ----------------------------------------------------------------------------------------------


def test_an_engine_whose_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "write /var/lib/docker/x: no space left on device"
    monkeypatch.setattr(
        archive, "connect_engine", lambda: SimpleNamespace(load_image=lambda chunks: [{"error": words}])
    )
    with pytest.raises(MachineError, match="the engine's disk is full") as full:
        archive._send(iter(()))
    assert full.value.next_step == "free space there, then repeat"


def test_an_engine_without_oci_archives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    exported = pack({DOCKER_MANIFEST_FILE: b"[]"})
    engine = SimpleNamespace(export_image=lambda tag: iter([exported]))
    monkeypatch.setattr(archive, "connect_engine", lambda: engine)
    with pytest.raises(WorkFailed, match="the engine writes no OCI archive"):
        save_image_archive(0, "rlbox/mine:latest", "rlbox/mine:latest", tmp_path / "x.tar")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("packer", "kind"), [(zstd.compress, "tar+zstd"), (gzip.compress, "tar+gzip"), (bytes, "tar")])
def test_convert_to_docker_archive_unpacks_layers(packer: Callable[[bytes], bytes], kind: str, tmp_path: Path) -> None:
    config = json.dumps({"rootfs": {"diff_ids": [compute_sha256_digest(data) for data in LAYERS]}}).encode()
    blobs = [packer(layer) for layer in LAYERS]
    layers = [create_descriptor(blob, f"application/vnd.oci.image.layer.v1.{kind}") for blob in blobs]
    body = create_image_manifest(create_descriptor(config, CONFIG_TYPE), layers)
    named = replace(create_descriptor(body, MANIFEST_TYPE), annotations={CONTAINERD_NAME_ANNOTATION: NAME})
    stored = {f"{BLOBS_DIR}{compute_sha256_digest(data)[7:]}": data for data in (config, body, *blobs)}
    found = read_verified_archive(
        write(tmp_path / "a.tar", {LAYOUT_FILE: LAYOUT, INDEX_FILE: create_index(named), **stored})
    )
    converted = io.BytesIO(b"".join(stream_as_docker_archive(found, "mine:2", {layers[1].digest})))
    with tarfile.open(fileobj=converted) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    (image,) = json.loads(files["manifest.json"])
    assert (image["RepoTags"], files[image["Config"]]) == (["mine:2"], config)
    assert [files.get(name) for name in image["Layers"]] == [LAYERS[0], None]


@pytest.mark.parametrize(
    ("version", "unpacks"), [("20.10.24+dfsg1", False), ("23.0.1", True), ("26.1.5", True), ("", True)]
)
def test_unpacks_zstd_from_docker_23_on(version: str, unpacks: bool) -> None:
    assert archive.can_engine_unpack_zstd(version) is unpacks
