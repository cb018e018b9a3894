"""The image of a cluster: its identity in every engine, and an archive without the layers that a node has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlbox.cluster import image as sending
from rlbox.cluster.image import find_present_layer_digests, hash_layers_and_config, send_archive
from rlbox.cluster.nodes import Node
from rlbox.engine.archive import ImageArchive
from rlbox.errors import EngineError

LAYERS = ["sha256:a", "sha256:b", "sha256:c"]


class Engine:
    """An engine with images of these layers; `answers` are what it says of archives, one after the other."""

    def version(self) -> str:
        return "26.1.5"

    def __init__(self, *images: list[str], answers: Iterable[str] = ("",)) -> None:
        self._images, self._answers, self.loaded = images, list(answers), list[bytes]()

    def list_images_with_label(self, label: str) -> list[dict[str, Any]]:
        return [{"Id": str(number)} for number in range(len(self._images))]

    def find_image(self, name: str) -> dict[str, Any]:
        return {"RootFS": {"Layers": self._images[int(name)]}}

    def load_image(self, chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        self.loaded.append(b"".join(chunks))
        error = self._answers.pop(0)
        yield {"error": error} if error else {"stream": "Loaded"}


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch) -> ImageArchive:
    """An archive whose packed layers are `1`, `2`, `3`; it reads as the digests that it then has."""
    layers = tuple(SimpleNamespace(digest=digest, size=1) for digest in "123")
    monkeypatch.setattr(sending, "read_diff_ids", lambda archive, manifest: LAYERS)
    monkeypatch.setattr(
        sending, "stream_archive", lambda archive, omit: iter(["".join(sorted({*"123"} - omit)).encode()])
    )
    return cast(ImageArchive, SimpleNamespace(manifests=(SimpleNamespace(layers=layers),)))


def send(engine: Engine, archive: ImageArchive) -> list[str]:
    said: list[str] = []
    node = cast(Node, SimpleNamespace(name="b", connect_docker_engine=lambda: engine))
    send_archive(node, archive, "tag", said.append, lambda item: None)
    return said


def test_identity_is_that_of_layers_and_configuration() -> None:
    """An engine leaves out what is empty, or not; its own id is that of a manifest or of a configuration."""
    config = {"Env": ["A=1"], "Entrypoint": ["sh"], "Labels": {"x": "y"}}
    one = {"Id": "1", "RootFS": {"Layers": LAYERS}, "Config": config}
    other = {"Id": "2", "RootFS": {"Layers": LAYERS}, "Config": {**config, "Cmd": None, "User": "", "Hostname": "h"}}
    assert hash_layers_and_config(one) == hash_layers_and_config(other) != ""
    assert hash_layers_and_config(one) != hash_layers_and_config({**one, "Config": {**config, "Env": ["A=2"]}})
    assert hash_layers_and_config(one) != hash_layers_and_config({**one, "RootFS": {"Layers": LAYERS[:2]}})
    assert hash_layers_and_config(None) == ""


def test_layers_that_an_image_of_the_node_begins_with_are_not_sent(archive: ImageArchive) -> None:
    engine = Engine(["sha256:a", "sha256:b", "sha256:x"], ["sha256:c"])
    assert find_present_layer_digests(cast(Any, engine), archive, archive.manifests[0]) == {"1", "2"}
    assert send(engine, archive) == []
    assert engine.loaded == [b"3"]


def test_an_engine_that_lacks_layers_after_all_is_sent_the_whole(archive: ImageArchive) -> None:
    engine = Engine(LAYERS[:1], answers=["content digest sha256:1: not found", ""])
    assert send(engine, archive) == ["node b lacks layers of the image after all: the complete image is sent"]
    assert engine.loaded == [b"23", b"123"]


def test_an_engine_without_room_is_named(archive: ImageArchive) -> None:
    with pytest.raises(EngineError, match="the image did not get to node b") as caught:
        send(Engine(answers=["write /var/lib: no space left on device"]), archive)
    assert caught.value.next_step == "free space there"
