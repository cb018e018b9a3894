"""What happened to nodes of a cluster is told apart, the first first."""

from __future__ import annotations

from typing import Any

import pytest
from clusterfacts import DISK

from rlbox.cluster.node.facts import RayInstance
from rlbox.cluster.nodes import ConnectionAttempt
from rlbox.cluster.status import (
    NodeFailure,
    find_failure,
    make_unreachable_node_failure,
    sort_causes_before_consequences_marking_first,
)
from rlbox.findings import Finding

AT = "2025-11-26T10:00:0{}.500000000Z"
FULL = DISK._replace(free=DISK.size // 200)
DEAD = "Ray lost it: health check failed"


def container(second: int = 0, **changes: Any) -> RayInstance:
    sound = RayInstance(id="1", name="rlbox-pair-1", image="i", labels={}, status="running")
    return sound._replace(finished=AT.format(second), **changes)


def ended(code: int, second: int = 0, **changes: Any) -> RayInstance:
    return container(second, status="exited", exit_code=code, **changes)


def way(said: str, port: int = 22) -> ConnectionAttempt:
    return ConnectionAttempt("a", "b", "10.0.0.2", port, said)


def failure(node: str = "b", **changes: Any) -> NodeFailure | None:
    """Return what happened to a node that is sound but for the changes."""
    return find_failure(node, **{"instance": container(), "disk": DISK, **changes})


def findings(*failures: NodeFailure | None) -> tuple[Finding, ...]:
    return sort_causes_before_consequences_marking_first(filter(None, failures))


@pytest.mark.parametrize(
    ("changes", "id_", "seen"),
    [
        ({"instance": ended(137)}, "container-killed", "exit code 137, since 10:00:00 UTC"),
        ({"instance": ended(137, oom=True)}, "out-of-memory", "exit code 137, since 10:00:00 UTC"),
        ({"instance": ended(255), "is_restarted": True}, "host-restarted", "exit code 255, since 10:00:00 UTC"),
        ({"instance": ended(1), "disk": FULL}, "disk-full", "exit code 1, /data: 4.8 GB of 966.4 GB free, since"),
        ({"instance": ended(1), "missing": DEAD}, "cut-off", f"exit code 1, {DEAD}, since 10:00:00 UTC"),
        ({"instance": ended(1)}, "ray-ended", "exit code 1, since 10:00:00 UTC"),
        ({"instance": None}, "container-gone", ""),
        ({"missing": DEAD}, "cut-off", DEAD),
        ({"disk": FULL}, "disk-full", "/data: "),
    ],
)
def test_each_is_told_apart(changes: dict[str, Any], id_: str, seen: str) -> None:
    (found,) = findings(failure(**changes))
    assert found.id == id_
    assert found.seen.startswith(seen)
    assert (found.where, found.level) == ("b", "error")


@pytest.mark.parametrize(
    ("attempts", "id_"),
    [
        ([way("")], "connection-cut"),
        ([way("No answer"), way("Connection refused", 8110)], "connection-cut"),
        ([way("it did not answer")], "host-gone"),
        ([], "host-unknown"),
    ],
)
def test_silence_is_told_apart(attempts: list[ConnectionAttempt], id_: str) -> None:
    (found,) = findings(make_unreachable_node_failure("b", "it does not answer", attempts))
    assert (found.id, found.seen, found.where) == (id_, "it does not answer", "b")


def test_nothing_happened_to_a_sound_node() -> None:
    assert failure() is None


def test_who_failed_first_is_first_whatever_its_clock_says() -> None:
    """The worker was killed two seconds before the head; its clock is an hour ahead."""
    head = failure("a", instance=ended(137, 4))
    late = failure(instance=ended(137)._replace(finished="2025-11-26T11:00:02.0Z"), clock_offset_s=3600.0)
    first, second = findings(head, late)
    assert (first.where, second.where) == ("b", "a")
    assert first.seen == "exit code 137, since 10:00:02 UTC, it failed first"


def test_what_ends_because_another_did_is_no_first() -> None:
    """The head was killed, or its machine is gone; the worker's Ray ended then, and has the only time."""
    worker = failure(instance=ended(1, 1))
    killed = failure("a", instance=ended(137, 5))
    gone = make_unreachable_node_failure("a", "it does not answer", [way("it did not answer")])
    assert [one.where for one in findings(worker, killed)] == ["a", "b"]
    assert [one.where for one in findings(worker, gone)] == ["a", "b"]
