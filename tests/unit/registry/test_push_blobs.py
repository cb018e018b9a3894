"""An image's files into a registry: what is missing, in parallel, the manifest last; every failure stops all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from registry_server import Fault, RegistryServer, running

from rlbox.engine.act.files import StoredImage
from rlbox.engine.oci import CONFIG, LAYER, describe, image_manifest, parse_manifest
from rlbox.engine.reference import Reference
from rlbox.errors import RegistryError, WorkFailed
from rlbox.registry.act.client import Registry
from rlbox.registry.act.destination import Destination
from rlbox.registry.act.push import push_image
from rlbox.registry.act.push_blobs import push_blobs
from rlbox.registry.push import PushedLayer, layer_key

pytestmark = pytest.mark.allow("sockets")
LAYERS = [bytes([number]) * (number * 100_000) for number in range(1, 8)]


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with running() as server:
        yield server


@pytest.fixture
def talk() -> list[str]:
    return []


@pytest.fixture
def registry(server: RegistryServer, talk: list[str]) -> Iterator[Registry]:
    with Registry(server.host, write=True, pause=lambda s: None, on_retry=talk.append) as registry:
        yield registry


@pytest.fixture
def reference(server: RegistryServer) -> Reference:
    return Reference(host=server.host, repository="team/x", tag="1")


@pytest.fixture
def image(tmp_path: Path) -> StoredImage:
    """An image whose first layer occurs twice."""
    config = describe(b"{}", CONFIG)
    layers = [describe(data, f"{LAYER}+zstd") for data in (*LAYERS, LAYERS[0])]
    manifest = parse_manifest(image_manifest(config, layers, {}))
    for data in (b"{}", manifest.body, *LAYERS):
        (tmp_path / describe(data, "").digest.removeprefix("sha256:")).write_bytes(data)
    return StoredImage(folder=tmp_path, manifest=manifest, config=config)


def test_only_what_is_missing_is_sent(
    server: RegistryServer, registry: Registry, reference: Reference, image: StoredImage
) -> None:
    server.add_blob(LAYERS[2])
    seen: list[PushedLayer] = []
    layers = push_blobs(Destination(reference=reference, registry=lambda: registry), image, "", seen.append)
    states = {layer_key(describe(data, "").digest): "pushed" for data in LAYERS}
    states[layer_key(describe(LAYERS[2], "").digest)] = "present"
    assert {key: layer.state for key, layer in layers.items()} == states
    assert {layer.key: layer.state for layer in seen[: len(LAYERS)]} == dict.fromkeys(states, "waiting")
    assert all(layer.done == layer.total for layer in layers.values())
    assert server.count("PUT", "/uploads/") == len(LAYERS)  # all but one, and the configuration
    assert server.seen[-1].path == "/v2/team/x/manifests/1"
    assert server.manifests["1"][1] == image.manifest.body
    assert {*server.blobs} == {image.config.digest, *(layer.digest for layer in image.manifest.layers)}


def test_what_passes_is_repeated(
    server: RegistryServer, registry: Registry, reference: Reference, image: StoredImage, talk: list[str]
) -> None:
    server.faults = [Fault("PUT", "/uploads/", 503, b"busy"), Fault("PUT", "/uploads/", 0)]
    push_blobs(Destination(reference=reference, registry=lambda: registry), image, "", lambda layer: None)
    assert server.manifests["1"][1] == image.manifest.body
    assert f"attempt 1 of 4 failed: {server.host} answered 503: busy; again in 0.5 s" in talk


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (Fault("PUT", "/uploads/", 507), "{host} has no room left: 507"),
        (Fault("POST", "/uploads/", 403), "{host} refused: this login may not push here"),
        (Fault("HEAD", "/blobs/", 503, times=99), "{host} answered 503"),
        (Fault("PUT", "/manifests/", 400, b"no"), "{host} answered 400: no"),
    ],
)
def test_the_first_failure_ends_it(
    server: RegistryServer, registry: Registry, reference: Reference, image: StoredImage, fault: Fault, what: str
) -> None:
    server.faults = [fault]
    with pytest.raises(RegistryError) as caught:
        push_blobs(Destination(reference=reference, registry=lambda: registry), image, "", lambda layer: None)
    assert caught.value.what.startswith(what.format(host=server.host))
    assert "1" not in server.manifests


def test_a_blob_that_left_the_store(
    server: RegistryServer, registry: Registry, reference: Reference, image: StoredImage
) -> None:
    image.path(image.manifest.layers[3]).unlink()
    with pytest.raises(WorkFailed, match=f"the engine's store has lost {image.manifest.layers[3].digest}: No such"):
        push_blobs(Destination(reference=reference, registry=lambda: registry), image, "", lambda layer: None)
    assert "1" not in server.manifests


@pytest.mark.parametrize(("status", "posts"), [(201, 1), (202, 1), (403, 2)], ids=["taken", "not there", "refused"])
def test_a_blob_of_another_repository(
    server: RegistryServer, registry: Registry, status: int, posts: int, tmp_path: Path
) -> None:
    blob = describe(b"layer", LAYER)
    server.faults = [Fault("POST", "/uploads/", status, headers={"Location": "/v2/team/x/blobs/uploads/9"})]
    assert registry.put_blob("team/x", blob, b"layer", elsewhere="team/y") is (status != 201)
    asked = [seen.path for seen in server.seen if seen.method == "POST"]
    assert asked[0] == f"/v2/team/x/blobs/uploads/?mount={blob.digest.replace(':', '%3A')}&from=team%2Fy"
    assert (len(asked), server.count("PUT")) == (posts, status != 201)


def test_files_that_can_be_read_are_sent_from_there(
    server: RegistryServer,
    registry: Registry,
    reference: Reference,
    image: StoredImage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = tmp_path / "containerd/io.containerd.content.v1.content/blobs"
    store.mkdir(parents=True)
    (store / "sha256").symlink_to(image.folder)
    monkeypatch.setattr("rlbox.engine.act.files._SYSTEM", str(tmp_path / "containerd"))
    digest = image.manifest.digest
    contents = {"Layers": ["sha256:plain"] * len(image.manifest.layers)}
    described = {"Id": digest, "RepoDigests": [f"rlbox/x@{digest}"], "RootFS": contents}
    pushed = push_image(
        described,
        "rlbox/x:latest",
        Destination(reference=reference, registry=lambda: registry),
        on_layer=lambda layer: None,
        on_retry=lambda text: None,
    )
    assert (pushed.manifest, pushed.exact) == (image.manifest, True)
    assert (pushed.count.total, pushed.count.present) == (len(LAYERS), 0)
    assert pushed.count.size == sum(map(len, LAYERS))
    assert json.loads(server.manifests["1"][1])["config"]["digest"] == image.config.digest
