"""What Ray says of its nodes, and a cluster in words."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from clusterfacts import plan

from rlbox.cluster.runtime import RayNode, RayState, find_member_faults
from rlbox.cluster.status import create_status


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
    leaving = {"b": "Ray has not given up yet what was ended there"}
    assert find_member_faults(plan(), state(first, old), {"2"}) == {"b": "it has not joined"}
    assert find_member_faults(plan(), state(first, old, new), {"2"}) == leaving
    assert find_member_faults(plan(), state(first, {**old, "alive": False}, new), {"2"}) == {}


def test_a_cluster_in_words() -> None:
    told = create_status(plan(), state(node("a"), node("b")), dict.fromkeys("ab", "running"), {"a": 10**9, "b": 10**9})
    assert told.healthy
    assert told.text().splitlines() == [
        "cluster pair of mine: Ray 2.60.0, 2 nodes, 3 of 4 GPUs used",
        "closed by a token; by ann@desk, 2026-11-25T10:00:00+00:00",
        "dashboard: http://127.0.0.1:8101 on a, here by: ssh -N -L 8101:127.0.0.1:8101 a",
        "node  role    address   container  Ray    GPUs   object store  disk free",
        "a     head    10.0.0.1  running    alive  1.5/2  2.0 GB        1.0 GB",
        "b     worker  10.0.0.2  running    alive  1.5/2  2.0 GB        1.0 GB",
    ]


def test_what_does_not_run_is_not_healthy() -> None:
    both = state(node("a"), node("b"))
    assert not create_status(plan(), both, {"a": "running", "b": "exited (137)"}, {}).healthy
    lost = create_status(plan(), RayState(error="its head does not run"), {"b": "running"}, {})
    assert not lost.healthy
    assert [row.container for row in lost.nodes] == ["not reached", "running"]
    assert json.loads(json.dumps(lost.as_json()))["cluster"]["id"] == replace(plan()).id


def test_a_machine_that_was_started_anew_before_a_repair_is_its_label() -> None:
    old = plan(members=tuple(replace(one, identity="first") for one in plan().members))
    assert [one.identity for one in old.with_identities({"b": "second"}).members] == ["first", "second"]
