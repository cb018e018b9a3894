"""`rlbox cluster up --from REF`: what a registry has under a name, what nodes' engines make of it, and what is advised.

The registry answers on loopback; the nodes' engines are played.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from following import Follow
from registry_server import PASSWORD, USER, RegistryServer, running
from test_next_cluster import Said, told

from rlbox.cluster.pulled import RegistryImage, find_in_registry, pull_image
from rlbox.cluster.reach.fleet import Fleet
from rlbox.engine.oci import CONFIG, INDEX, MANIFEST, describe, document, image_manifest
from rlbox.engine.reference import parse_reference
from rlbox.errors import EngineError, RegistryError, RlboxError
from rlbox.system.progress import ProgressItem

pytestmark = pytest.mark.allow("sockets")
KEEP = parse_reference("rlbox/mine:tests")


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    """A registry with an image of target `mine` as `team/mine:v1`, and one of another as `v2`."""
    with running() as found:
        for tag, target in (("v1", "mine"), ("v2", "theirs")):
            add(found, tag, {"config": {"Labels": {"rlbox.target": target}}})
        yield found


def add(registry: RegistryServer, tag: str, config: dict[str, Any]) -> str:
    """Add an image, behind an index as engines push it; return the index's digest."""
    part = describe(document(config), CONFIG)
    registry.add_blob(document(config))
    body = image_manifest(part, ())
    registry.add_manifest("", body, MANIFEST)
    rows = [describe(body, MANIFEST).json()]
    return registry.add_manifest(tag, document({"schemaVersion": 2, "mediaType": INDEX, "manifests": rows}), INDEX)


def find(registry: RegistryServer, name: str) -> RegistryImage:
    return find_in_registry(f"{registry.host}/team/mine{name}", "mine", plain_http=False)


def said(do: Callable[[], Any]) -> Said:
    """Do it, and say how it went; what comes of it is no matter."""
    return told(do)


def test_a_tag_is_a_digest_for_every_node(registry: RegistryServer) -> None:
    image = find(registry, ":v1")
    digest = image.pinned.digest
    assert str(image.pinned) == f"{registry.host}/team/mine@{digest}"
    assert registry.manifests["v1"] == registry.manifests[digest]
    config = json.loads(registry.blobs[image.identity])
    assert config["config"]["Labels"] == {"rlbox.target": "mine"}
    assert {digest, image.identity} < image.names
    assert find(registry, f"@{digest}") == image
    registry.blobs[image.identity] = b"{}"
    with pytest.raises(RegistryError, match="other bytes than asked for"):
        find(registry, ":v1")


def test_the_login_of_this_machine_goes_with_the_pull(
    registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = {"username": USER, "password": PASSWORD}
    monkeypatch.setattr("rlbox.cluster.pulled.find_login", lambda host: login)
    image = find(registry, ":v1")
    assert PASSWORD not in repr(image)
    node = Node(image.identity)
    assert pull([node], image) == ["pulled"]
    assert node.asked == [(str(image.pinned), login)]
    assert (node.tagged, node.untagged) == ([(image.identity, str(KEEP))], [str(image.pinned)])


def test_what_is_not_the_targets_is_refused(registry: RegistryServer, follow: Follow) -> None:
    """An image of another target, and what is no image: another name is right."""
    for name in (":v2", ":none", ":list"):
        registry.add_manifest("list", document({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}), INDEX)
        refused = said(lambda name=name: find(registry, name))
        assert refused.code == {":v2": 2}.get(name, 6), refused.err
        if name != ":none":
            follow.step((), refused)
    assert said(lambda: find(registry, ":v1")).code == 0


class Node:
    """A node whose engine has `id` after a pull, or says why not; `asked` are its pulls."""

    wish = SimpleNamespace(data="/data")

    def __init__(self, id_: str, said: str = "", name: str = "a") -> None:
        self.id, self.said, self.name = id_, said, name
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.tagged: list[tuple[str, str]] = []
        self.untagged: list[str] = []

    def engine(self) -> Any:
        return SimpleNamespace(
            pull=self._pull,
            tag=lambda id_, reference: self.tagged.append((id_, str(reference))),
            remove_tag=self.untagged.append,
        )

    def _pull(self, reference: Any, login: dict[str, str]) -> Iterator[dict[str, str]]:
        self.asked.append((str(reference), login))
        if self.said == "gone":
            raise EngineError("the engine does not answer")
        yield {"error": self.said} if self.said else {"status": "done"}

    def ask(self, do: str, **args: Any) -> dict[str, Any]:
        return {"image": {"id": self.id}}


def pull(nodes: list[Node], image: RegistryImage) -> list[str]:
    """Have nodes pull; return what was told of each in the end."""
    rows: list[ProgressItem] = []
    links: Any = {node.name: node for node in nodes}
    pull_image(Fleet(links, ()), [*links], image, KEEP, rows.append)
    return [row.told for row in rows if row.mark]


@pytest.mark.parametrize("words", ["no route to host", "gone"])
def test_a_node_that_cannot_pull(words: str, registry: RegistryServer, follow: Follow) -> None:
    """All are tried; then the registry is reached."""
    image = find(registry, ":v1")
    nodes = [Node(image.identity, words), Node(image.identity, name="b")]
    step = follow.step((), said(lambda: pull(nodes, image)))
    assert step.said.code == EngineError.exit_code
    assert "the engine of node a could not pull" in step.said.err
    assert [len(node.tagged) for node in nodes] == [0, 1]
    nodes[0].said = ""
    assert said(lambda: pull(nodes, image)).code == 0


def test_another_image_on_a_node(registry: RegistryServer, follow: Follow) -> None:
    image, node = find(registry, ":v1"), Node("sha256:" + "f" * 64)
    step = follow.step((), said(lambda: pull([node], image)))
    assert step.said.code == 5
    assert node.tagged == []
    node.id = image.pinned.digest
    assert said(lambda: pull([node], image)).code == 0


def test_an_error_is_one_that_can_be_acted_on() -> None:
    with pytest.raises(RlboxError):
        find_in_registry("No Image", "mine", plain_http=False)
