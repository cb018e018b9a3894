"""What happened to nodes of a cluster is told apart, the first first; and what listens besides its plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from clusterfacts import DISK, plan

from rlbox.cluster.facts import ClusterContainer, Listener
from rlbox.cluster.failures import MemberFacts, find_failures
from rlbox.cluster.listeners import check_listeners
from rlbox.cluster.survey import Way

AT = "2025-11-26T10:00:0{}.500000000Z"
FULL = replace(DISK, free=DISK.size // 200)
DEAD = "Ray lost it: health check failed"


def container(second: int = 0, **changes: Any) -> ClusterContainer:
    sound = ClusterContainer(id="1", name="rlbox-pair-1", image="i", labels={}, status="running")
    return replace(sound, finished=AT.format(second), **changes)


def ended(code: int, second: int = 0, **changes: Any) -> ClusterContainer:
    return container(second, status="exited", exit_code=code, **changes)


def way(said: str, port: int = 22) -> Way:
    return Way(source="a", goal="b", address="10.0.0.2", port=port, said=said)


SOUND = MemberFacts(name="b", container=container(), disk=DISK)
SILENT = {"container": None, "said": "it does not answer: No route to host"}


@pytest.mark.parametrize(
    ("changes", "id_", "seen"),
    [
        ({"container": ended(137)}, "container-killed", "exit code 137, since 10:00:00 UTC"),
        ({"container": ended(137, oom=True)}, "out-of-memory", "exit code 137, since 10:00:00 UTC"),
        ({"container": ended(255), "restarted": True}, "host-restarted", "exit code 255, since 10:00:00 UTC"),
        ({"container": ended(1), "disk": FULL}, "disk-full", "exit code 1, /data: 4.8 GB of 966.4 GB free, since"),
        ({"container": ended(1), "lost": DEAD}, "cut-off", f"exit code 1, {DEAD}, since 10:00:00 UTC"),
        ({"container": ended(1)}, "ray-ended", "exit code 1, since 10:00:00 UTC"),
        ({"container": None}, "container-gone", ""),
        ({"lost": DEAD}, "cut-off", DEAD),
        ({"disk": FULL}, "disk-full", "/data: "),
        ({**SILENT, "ways": (way(""),)}, "connection-cut", "it does not answer"),
        (
            {**SILENT, "ways": (way("No answer"), way("Connection refused", 8110))},
            "connection-cut",
            "it does not answer",
        ),
        ({**SILENT, "ways": (way("it did not answer"),)}, "host-gone", "it does not answer"),
        (SILENT, "host-unknown", "it does not answer"),
    ],
)
def test_each_is_told_apart(changes: dict[str, Any], id_: str, seen: str) -> None:
    (failure,) = find_failures([replace(SOUND, **changes)])
    assert failure.id == id_
    found = failure.finding("do it", first=False)
    assert found.seen.replace("", "").replace("", "").startswith(seen)
    assert (found.where, found.remedy, found.level) == ("b", "do it", "error")


def test_nothing_happened_to_a_sound_node() -> None:
    assert find_failures([SOUND]) == ()


def test_who_failed_first_is_first_whatever_its_clock_says() -> None:
    """The worker was killed two seconds before the head; its clock is an hour ahead."""
    head = MemberFacts(name="a", container=ended(137, 4))
    worker = MemberFacts(name="b")
    late = replace(worker, container=replace(ended(137), finished="2025-11-26T11:00:02.0Z"), offset=3600.0)
    assert [one.node for one in find_failures([head, late])] == ["b", "a"]
    first = find_failures([head, late])[0].finding("", first=True)
    assert first.seen == "exit code 137, since 10:00:02 UTC, it failed first"


def test_what_ends_because_another_did_is_no_first() -> None:
    """The head was killed, or its machine is gone; the worker's Ray ended then, and has the only time."""
    worker = MemberFacts(name="b", container=ended(1, 1))
    killed = MemberFacts(name="a", container=ended(137, 5))
    gone = MemberFacts(name="a", said="it does not answer", ways=(way("it did not answer"),))
    assert [one.node for one in find_failures([worker, killed])] == ["a", "b"]
    assert [one.node for one in find_failures([worker, gone])] == ["a", "b"]


def listener(port: int, address: str = "0.0.0.0", words: str = "python train.py") -> Listener:
    return Listener(port=port, address=address, pid=7, words=words)


RAYLET = "/opt/venv/lib/python3.11/site-packages/ray/core/src/ray/raylet/raylet --x"


@pytest.mark.parametrize(
    ("one", "named"),
    [
        (listener(8119), True),
        (listener(11001), True),
        (listener(11002), False),
        (listener(9555), False),
        (listener(9555, "127.0.0.1"), True),
        (listener(9555, "::ffff:127.0.0.1"), True),
        (listener(9555, "::"), False),
        (listener(40000), True),
        (listener(40000, words="ray::Rank.total"), True),
        (listener(40000, words=RAYLET), False),
        (listener(40000, words="ray::DashboardAgent"), False),
        (listener(40000, words="ray-dashboard-JobHead-0 (/opt/venv/bin/python)"), False),
        (listener(8110, words=RAYLET), True),
    ],
)
def test_what_listens_is_named_by_the_plan(one: Listener, named: bool) -> None:
    found = list(check_listeners(plan(), {"a": [], "b": [one]}, {"a": (32768, 60999), "b": (32768, 60999)}))
    assert [(row.id, row.where) for row in found] == ([] if named else [("listens-besides", "b")])
    assert named or f"(pid 7) on {'[::]' if one.address == '::' else one.address}:{one.port}" in found[0].seen
