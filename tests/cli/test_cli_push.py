"""`rlbox push`, `rlbox save` and `rlbox load`: what they say before anything is sent, written or loaded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fakes import EngineSocket, Folder, Rlbox, Said
from registry_server import CONFIG_TYPE, LAYER_TYPE, RegistryServer, create_image_manifest, running

from rlbox.engine.oci import (
    MANIFEST_TYPE,
    compute_sha256_digest,
    create_descriptor,
)

TAG = "rlbox/mine:tests"
TARGET = """
title = "smallest target"
[base]
bootstrap = "debian:bookworm"
[[stack]]
name = "libs"
packages = ["six==1.16.0"]
[disk]
host = "~/disk"
create = true
"""
pytestmark = pytest.mark.allow("sockets", "processes")


@pytest.fixture
def mine(folder: Folder) -> Folder:
    """A project with a target; nothing here needs its lock."""
    folder.target("mine", TARGET)
    return folder


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with running() as server:
        yield server


def stored(server: RegistryServer, engine: EngineSocket, kind: str = "zstd") -> str:
    """Put the same image into the registry, as team/mine:1, and into the engine; return its digest."""
    body = create_image_manifest(
        create_descriptor(b"{}", CONFIG_TYPE), [create_descriptor(b"layer", f"{LAYER_TYPE}+{kind}")]
    )
    digest = server.add_manifest("1", body, MANIFEST_TYPE)
    layers = {"Layers": [compute_sha256_digest(b"plain")]}
    engine.images[TAG] = {"Id": digest, "RepoDigests": [f"rlbox/mine@{digest}"], "RootFS": layers}
    return digest


@pytest.mark.usefixtures("no_engine")
def test_dry_run_needs_neither_engine_nor_registry(rlbox: Rlbox, mine: Folder) -> None:
    unchecked = "# not checked: image: cannot connect to Docker (unix:///var/run/docker.sock)\n"
    assert rlbox("push", "mine", "--to", "registry.example/team/", "--dry-run") == Said(
        code=0,
        out=f"push {TAG} to registry.example/team/mine:latest\n\n{unchecked}"
        "# not checked: whether registry.example takes it: a dry run asks no registry\n"
        f"# verdict: this would push {TAG}, as far as it is checked\n",
        err="",
    )
    assert rlbox("save", "mine", "x.tar", "--dry-run") == Said(
        code=0,
        out=f"write {TAG} to {mine.path}/x.tar\n\n{unchecked}"
        f"# verdict: this would save {TAG}, as far as it is checked\n",
        err="",
    )
    assert mine.files() == ["images/mine/target.toml"]


@pytest.mark.parametrize("words", [["push", "mine", "--to", "127.0.0.1:1/x"], ["save", "mine", "x.tar"]], ids=str)
def test_no_image_yet(rlbox: Rlbox, mine: Folder, engine: EngineSocket, words: list[str]) -> None:
    rlbox(*words).check_error(4, f"the engine has no image {TAG}")
    dry = rlbox(*words, "--dry-run", "--json")
    assert (dry.code, dry.data["verdict"]["refused"][0]["what"]) == (4, f"the engine has no image {TAG}")
    assert mine.files() == ["images/mine/target.toml"]


def test_what_is_there_is_only_proven(rlbox: Rlbox, mine: Folder, engine: EngineSocket, server: RegistryServer) -> None:
    digest = stored(server, engine)
    name = f"{server.host}/team/mine"
    assert rlbox("push", "mine", "--to", f"{name}:1") == Said(
        code=0,
        out=f"{name}@{digest}\n",
        err="note: its layers are zstd; an engine before Docker 23 cannot unpack them\n"
        f"next: docker pull {name}@{digest}\n",
    )
    assert [seen.path for seen in server.seen] == ["/v2/", "/v2/team/mine/manifests/1"]
    assert rlbox("push", "mine", "--to", f"{name}:1", "-q") == Said(code=0, out=f"{name}@{digest}\n", err="")
    assert rlbox("push", "mine", "--to", f"{name}:1", "--json").data == {
        "schema": 1,
        "target": "mine",
        "reference": f"{name}:1",
        "digest": digest,
        "layers": {"total": 1, "pushed": 0, "present": 1},
        "bytes": 0,
        "exact": True,
    }


def test_a_registry_of_another_machine_must_speak_tls(
    rlbox: Rlbox, mine: Folder, engine: EngineSocket, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("push", "registry_client"):
        monkeypatch.setattr(f"rlbox.engine.{module}.is_loopback_host", lambda host: False)
    engine.images[TAG] = {"Id": "sha256:1"}
    rlbox("push", "mine", "--to", f"{server.host}/x").check_error(6, f"{server.host} does not speak TLS")
