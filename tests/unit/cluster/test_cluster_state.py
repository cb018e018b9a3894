"""What Ray says of its nodes, and a cluster in words."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from clusterfacts import DISK, existing, facts, plan

from rlbox.cluster import status
from rlbox.cluster.node.facts import RayInstance
from rlbox.cluster.nodes import NodePool
from rlbox.cluster.plan import ClusterOptions
from rlbox.cluster.runtime import RayNode, RayState, find_member_faults
from rlbox.cluster.status import ClusterStatus, query_ray_for_cluster_status
from rlbox.findings import Finding


def node(name: str, *, alive: bool = True, gpus: float = 2.0, **more: Any) -> dict[str, Any]:
    total = {"GPU": gpus, "CPU": 32.0, "object_store_memory": 2e9}
    return {"id": name, "name": name, "alive": alive, "total": total, "free": {**total, "GPU": 0.5}, **more}


def state(*nodes: dict[str, Any]) -> RayState:
    return RayState(nodes=tuple(RayNode(**one) for one in nodes))


def test_missing_nodes_say_what_lacks() -> None:
    assert find_member_faults(plan(), state(node("a"), node("b"))) == {}
    assert find_member_faults(plan(), state(node("a"))) == {"b": "it has not joined"}
    assert find_member_faults(plan(), state(node("a"), node("b", gpus=1.0))) == {"b": "1 of 2 GPUs"}
    dead = node("b", alive=False, death_reason="health check failed")
    assert find_member_faults(plan(), state(node("a"), dead)) == {"b": "Ray lost it: health check failed"}
    assert find_member_faults(plan(), state(node("a"), dead, node("b"))) == {}


def test_a_life_that_was_ended_does_not_count_and_is_waited_for() -> None:
    """Ray calls one alive for half a minute after it was killed, and gives it work."""
    first, old, new = node("a", id="1"), node("b", id="2"), node("b", id="3")
    leaving = {"b": "Ray still counts the processes that ended there"}
    assert find_member_faults(plan(), state(first, old), {"2"}) == {"b": "it has not joined"}
    assert find_member_faults(plan(), state(first, old, new), {"2"}) == leaving
    assert find_member_faults(plan(), state(first, {**old, "alive": False}, new), {"2"}) == {}


def found(monkeypatch: pytest.MonkeyPatch, said: RayState, reached: str = "ab", **ended: str) -> ClusterStatus:
    """Return the status of a cluster whose Ray says this; `ended` are nodes whose container is not running."""
    monkeypatch.setattr(status, "query_ray_nodes_or_error", lambda head, plan: said)
    monkeypatch.setattr(status, "attempt_connections_from_nodes", lambda *given: ())
    silent = [Finding(id="unreachable", title="it does not answer", where=name) for name in "ab" if name not in reached]
    nodes: Any = {name: SimpleNamespace(name=name) for name in reached}
    watching = SimpleNamespace(pool=NodePool(nodes, silent), options=ClusterOptions(target="mine"))
    instances = {n: RayInstance(id=n, name="n", image="i", labels={}, status=ended.get(n, "running")) for n in reached}
    facts_ = {name: facts(name, disk=DISK._replace(free=10**9, size=10**9)) for name in reached}
    return query_ray_for_cluster_status(existing(watching, instances, facts=facts_))


def test_a_cluster_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    told = found(monkeypatch, state(node("a"), node("b")))
    assert told.healthy
    assert told.text().splitlines() == [
        "cluster pair of mine: Ray 2.60.0, 2 nodes, 3 of 4 GPUs used",
        "closed by a token; by ann@desk, 2026-11-25T10:00:00+00:00",
        "dashboard: http://127.0.0.1:8101 on a, here by: ssh -N -L 8101:127.0.0.1:8101 a",
        "node  role    address   container  Ray    GPUs   object store  disk free",
        "a     head    10.0.0.1  running    alive  1.5/2  2.0 GB        1.0 GB",
        "b     worker  10.0.0.2  running    alive  1.5/2  2.0 GB        1.0 GB",
    ]


def test_what_does_not_run_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    both = state(node("a"), node("b"))
    assert not found(monkeypatch, both, b="exited").healthy
    lost = found(monkeypatch, both, reached="b")
    assert not lost.healthy
    assert [(row.container, row.missing) for row in lost.nodes] == [
        ("not reached", "not asked"),
        ("running", "not asked"),
    ]
    assert [(one.where, one.id) for one in lost.failures] == [("a", "host-unknown")]
    assert json.loads(json.dumps(lost.as_json()))["cluster"]["id"] == plan().id


def test_a_machine_that_was_started_anew_is_told_by_the_label(monkeypatch: pytest.MonkeyPatch) -> None:
    container = RayInstance(id="b", name="n", image="i", labels={"rlbox.cluster.machine": "first"}, status="exited")
    pool: Any = NodePool({})
    watching = SimpleNamespace(pool=pool, options=ClusterOptions(target="mine"))
    cluster = existing(watching, {"b": container}, facts={"b": facts("b")})
    assert [one.id for one in query_ray_for_cluster_status(cluster).failures if one.where == "b"] == ["host-restarted"]
    again = container._replace(labels={"rlbox.cluster.machine": "boot-b"})
    cluster = existing(watching, {"b": again}, facts={"b": facts("b")})
    assert "host-restarted" not in [one.id for one in query_ray_for_cluster_status(cluster).failures]
