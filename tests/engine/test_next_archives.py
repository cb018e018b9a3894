"""What `rlbox save` and `rlbox load` advise is done, with a real image and the real client."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shlex
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from enginebox import Box, Result, docker
from fakes import EngineSocket
from following import Follow
from projectbox import own

from rlbox.engine.archive_format import blob_name
from rlbox.engine.oci import LAYER, sha256_of


@pytest.fixture
def box(tiny: Box, follow: Follow) -> Box:
    """The project of the target `tiny`, in which all that is followed is typed."""
    follow.rlbox = tiny
    return tiny


@pytest.fixture
def whole(box: Box) -> Path:
    """An archive of its image."""
    assert box("save", "tiny", "x.tar").code == 0
    return box.project / "x.tar"


@pytest.fixture
def tags() -> Iterator[list[str]]:
    """Names of images that are removed at the end."""
    made: list[str] = []
    yield made
    for tag in made:
        docker("image", "rm", tag)


def client(text: str) -> Result:
    """Type a line of the docker client's."""
    done = subprocess.run(shlex.split(text), capture_output=True, text=True, timeout=120)
    return Result(code=done.returncode, out=done.stdout, err=done.stderr)


def test_what_was_saved_is_loaded_and_started(follow: Follow, box: Box) -> None:
    step = follow("save", "tiny", "x.tar")
    said = follow.types(step)
    again = follow.step(step.commands({})[0], said)
    assert client(f"{again.text} true").code == 0


def test_an_archive_that_was_cut_is_copied_again(follow: Follow, whole: Path) -> None:
    copy = whole.with_name("copy.tar")
    copy.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    step = follow("load", "copy.tar")
    copy.write_bytes(whole.read_bytes())
    follow.again(step)


def test_what_is_no_archive_is_saved(follow: Follow, box: Box) -> None:
    (box.project / "x.tar").write_text("text")
    step = follow("load", "x.tar")
    (box.project / "x.tar").unlink()
    follow.types(step, TARGET="tiny", FILE="x.tar")
    follow.again(step)


def test_an_empty_archive_is_saved(follow: Follow, box: Box) -> None:
    tarfile.open(box.project / "x.tar", "w").close()
    step = follow("load", "x.tar")
    follow.types(step, TARGET="tiny", FILE="x.tar")
    follow.again(step)


def test_an_archive_of_dockers_own_is_for_docker(follow: Follow, whole: Path) -> None:
    own = whole.with_name("own.tar")
    with tarfile.open(whole) as tar, tarfile.open(own, "w") as kept:
        for member in tar:
            if member.name not in ("index.json", "oci-layout"):
                kept.addfile(member, tar.extractfile(member))
    step = follow("load", str(own))
    assert client(step.text).code == 0


def test_an_archive_of_two_images_is_for_docker(follow: Follow, box: Box, tags: list[str]) -> None:
    tag = own("tiny")
    tags.append("rlbox/tiny:another")
    docker("tag", tag, tags[0])
    docker("save", "--output", str(box.project / "two.tar"), tag, tags[0])
    step = follow("load", str(box.project / "two.tar"))
    assert client(step.text).code == 0


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[EngineSocket]:
    """An engine that has the image, and something wrong."""
    made = EngineSocket(tmp_path / "s")
    made.answers["/info"] = 200, b'{"DriverStatus": []}'
    made.images[own("tiny")] = {"Id": "sha256:" + "1" * 64, "RootFS": {"Layers": []}, "Config": {"Labels": {}}}
    yield made
    made.close()


def test_an_engine_whose_disk_is_full(follow: Follow, box: Box, whole: Path, broken: EngineSocket) -> None:
    """Until there is room: the one of this machine has it."""
    broken.answers["/images/load"] = 200, b'{"error": "write /var/lib/docker/x: no space left on device"}\n'
    extra = {"DOCKER_HOST": broken.address}
    follow.rlbox = replace(box, extra=extra)
    step = follow("load", str(whole))
    extra.clear()
    follow.again(step)


def test_an_engine_whose_store_is_damaged(follow: Follow, box: Box, broken: EngineSocket) -> None:
    """Until the image is built again: the one of this machine was."""
    config = json.dumps({"rootfs": {"diff_ids": ["sha256:" + hashlib.sha256(b"first").hexdigest()]}}).encode()
    manifest = json.dumps([{"Config": "config.json", "Layers": ["layer.tar"]}]).encode()
    files = {"layer.tar": b"another", "config.json": config, "manifest.json": manifest}
    broken.answers[f"/images/{own('tiny')}/get"] = 200, packed(files)
    extra = {"DOCKER_HOST": broken.address}
    follow.rlbox = replace(box, extra=extra)
    step = follow("save", "tiny", "y.tar")
    extra.clear()
    follow.again(step)


def test_an_archive_with_other_contents_is_saved_again(
    follow: Follow, box: Box, whole: Path, broken: EngineSocket
) -> None:
    """Every blob is what its name says, but a layer is not that of the configuration: an engine without manifests."""
    with tarfile.open(whole) as tar:
        blobs = {member.name: data.read() for member in tar if (data := tar.extractfile(member))}
    index = json.loads(blobs["index.json"])
    manifest = json.loads(blobs[blob_name(index["manifests"][0]["digest"])])
    layer, other = manifest["layers"][0], gzip.compress(b"other contents")
    layer |= {"digest": sha256_of(other), "size": len(other), "mediaType": f"{LAYER}+gzip"}
    body = json.dumps(manifest).encode()
    index["manifests"][0] |= {"digest": sha256_of(body), "size": len(body)}
    files = {"oci-layout": blobs["oci-layout"], "index.json": json.dumps(index).encode(), **{
        blob_name(sha256_of(data)): data for data in (*blobs.values(), body, other)
    }}  # fmt: skip
    whole.write_bytes(packed(files))
    extra = {"DOCKER_HOST": broken.address}
    follow.rlbox = replace(box, extra=extra)
    step = follow("load", whole.name)
    whole.unlink()
    extra.clear()  # where it is
    follow.types(step, TARGET="tiny")
    extra["DOCKER_HOST"] = broken.address
    broken.answers["/images/load"] = 200, b'{"stream": "loaded"}\n'
    broken.images[own("tiny")]["Id"] = manifest["config"]["digest"]
    follow.again(step)


def packed(files: Mapping[str, bytes]) -> bytes:
    """Return a tar of files."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return made.getvalue()
