"""Nodes are watched while something runs: each thing that happens is told once, and a slow node is no dead one."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from clusterfacts import plan

from rlbox.cluster import node_watch as watch
from rlbox.cluster.context import RunningCluster
from rlbox.cluster.facts import ClusterContainer
from rlbox.cluster.failures import Failure
from rlbox.cluster.fleet import Fleet
from rlbox.cluster.node_watch import NodesWatch, WatchedNodes
from rlbox.errors import NodeError

pytestmark = pytest.mark.allow("processes", "sockets")
ROW = {"name": "rlbox-pair-1", "image": "i", "labels": {}, "status": "running", "pid": 7}


class Heard:
    """What a node tells of itself until it is told to end."""

    def __init__(self, parts: Iterator[dict[str, Any]], end: Callable[[], None]) -> None:
        self._parts, self.end = parts, end

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._parts


class Played:
    """The connection to a node whose container is as `row` says; None: it does not answer.

    `way` is what it reaches, after `ways`.
    """

    def __init__(self, name: str) -> None:
        self.name, self.lost = name, False
        self.row: dict[str, Any] | None = {**ROW, "id": name}
        self.silent, self.way, self.ways = 0.0, "", list[str]()
        self.news: queue.Queue[dict[str, Any]] = queue.Queue()

    @property
    def heard(self) -> bool:
        return not self.lost and self.silent < 10

    def silent_s(self) -> float:
        return self.silent

    def start(self, do: str, **args: Any) -> Any:
        assert (do, args) == ("watch", {"here": False})
        return Heard(iter(self.news.get, {}), lambda: self.news.put({}))

    def ask(self, do: str, timeout_s: float = 60.0, **args: Any) -> dict[str, Any]:
        if do == "reach":
            said = self.ways.pop(0) if self.ways else self.way
            return {"reached": [{"said": said} for _ in args["goals"]]}
        if self.row is None:
            raise NodeError(f"node {self.name} has not answered")
        return {"containers": [self.row]}


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[dict[str, Played], queue.Queue[Failure]]]:
    """The connections to both nodes, and what the watch tells."""
    monkeypatch.setattr(watch, "_LOOK_S", 0.01)
    links: dict[str, Any] = {name: Played(name) for name in "ab"}
    containers = {name: ClusterContainer(id=name, name="n", image="i", labels={}, status="running") for name in "ab"}
    told: queue.Queue[Failure] = queue.Queue()
    context: Any = SimpleNamespace(fleet=Fleet(links, ()))
    standing = RunningCluster(plan=plan(), containers=containers)
    with closing(NodesWatch(context, standing, {"a": 0.0, "b": 0.0}, told.put)):
        yield links, told


def test_what_happens_is_told_once(watched: tuple[dict[str, Played], queue.Queue[Failure]]) -> None:
    links, told = watched
    links["b"].row = {**ROW, "id": "b", "status": "exited", "exit_code": 137}
    assert (told.get(timeout=60).id, links["b"].lost) == ("container-killed", False)
    links["b"].row = {**ROW, "id": "another"}
    failure = told.get(timeout=60)
    assert (failure.node, failure.id) == ("b", "container-gone")


def test_what_a_node_tells_is_looked_at_at_once(
    watched: tuple[dict[str, Played], queue.Queue[Failure]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its container has ended, and its disk is full: neither waits for the next look."""
    links, told = watched
    monkeypatch.setattr(watch, "_LOOK_S", 3600.0)
    sized = {"path": "/data", "there": True, "free": 1, "size": 10**9}
    for _ in range(3):  # looks that were begun with the other pause
        links["a"].news.put({"disk": sized})
    assert (told.get(timeout=60).id, told.empty()) == ("disk-full", True)
    links["b"].row = {**ROW, "id": "b", "status": "exited", "exit_code": 137}
    links["b"].news.put({"ended": "b"})
    assert told.get(timeout=60).id == "container-killed"


def test_what_became_of_a_node_whose_connection_broke_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head's connection is no more, and who followed it ends: first the other node tries to reach it."""
    monkeypatch.setattr(watch, "_LOOK_S", 0.01)
    links: dict[str, Any] = {name: Played(name) for name in "ab"}
    links["a"].lost, links["b"].way = True, "it did not answer"
    containers = {name: ClusterContainer(id=name, name="n", image="i", labels={}, status="running") for name in "ab"}
    said: list[str] = []
    context: Any = SimpleNamespace(fleet=Fleet(links, ()), app=SimpleNamespace(say=said.append))
    standing = RunningCluster(plan=plan(), containers=containers)
    with closing(WatchedNodes(context, standing, {"a": 0.0, "b": 0.0})) as nodes:
        (one,) = nodes.findings()
    assert (one.where, one.id) == ("a", "host-gone")
    assert [line.partition(":")[0] for line in said] == ["a"]


def test_a_machine_that_goes_down_ends_its_connections_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other node reaches it still, and then no more."""
    monkeypatch.setattr(watch, "_LOOK_S", 0.01)
    links: dict[str, Any] = {name: Played(name) for name in "ab"}
    links["a"].lost, links["b"].ways, links["b"].way = True, [""], "it did not answer"
    containers = {name: ClusterContainer(id=name, name="n", image="i", labels={}, status="running") for name in "ab"}
    told: queue.Queue[Failure] = queue.Queue()
    context: Any = SimpleNamespace(fleet=Fleet(links, ()))
    with closing(NodesWatch(context, RunningCluster(plan=plan(), containers=containers), {}, told.put)):
        assert told.get(timeout=60).id == "host-gone"
    assert told.empty()


@pytest.mark.parametrize(("way", "id_"), [("", "connection-cut"), ("it did not answer", "host-gone")])
def test_a_node_that_is_silent(way: str, id_: str, watched: tuple[dict[str, Played], queue.Queue[Failure]]) -> None:
    links, told = watched
    links["a"].way = way
    links["b"].row, links["b"].silent = None, 3.0  # slow, and no more
    with pytest.raises(queue.Empty):
        told.get(timeout=0.5)
    links["b"].silent = 12.0
    failure = told.get(timeout=60)
    assert (failure.node, failure.id, failure.seen.strip("")) == (
        "b",
        id_,
        "nothing is heard of it for 12 s",
    )
