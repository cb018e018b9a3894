"""What nodes did with work whose result is known: the bad one is named, with the figure, and no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from clusterfacts import facts, plan

from rlbox.cluster import burn_in
from rlbox.cluster.burn_in import (
    AllReduceResult,
    BurnInResult,
    DeviceResult,
    check_burn_in,
    require_burn_in,
    run_burn_in,
)
from rlbox.cluster.context import ClusterContext
from rlbox.errors import NodeError

FACTS = {"a": facts("a"), "b": facts("b")}
SOUND = BurnInResult(
    devices=tuple(DeviceResult(node=n, device=f"cuda:{i}", name="H100", tflops=600.0) for n in "ab" for i in (0, 1)),
    ways=(
        AllReduceResult(nodes=("a",), ranks=2, bytes_s=300e9),
        AllReduceResult(nodes=("b",), ranks=2, bytes_s=300e9),
        AllReduceResult(nodes=("a", "b"), ranks=4, bytes_s=11e9, speed=100_000),
    ),
)


def with_way(at: int, **changes: Any) -> BurnInResult:
    ways = list(SOUND.ways)
    ways[at] = replace(ways[at], **changes)
    return replace(SOUND, ways=tuple(ways))


def test_sound_nodes_have_no_finding() -> None:
    assert check_burn_in(SOUND) == ()
    assert "11.0 GB/s (88% of its link), 4 ranks" in SOUND.text()
    assert "600 TFLOP/s" in SOUND.text()


@pytest.mark.parametrize(
    ("changes", "id_", "seen"),
    [
        ({"wrong": True}, "product-wrong", "at 600 TFLOP/s"),
        ({"tflops": 310.0}, "device-slow", "310 TFLOP/s, the others 600"),
        ({"tflops": 0.0, "said": "CUDA error: an illegal"}, "product-failed", "CUDA error: an illegal"),
    ],
)
def test_a_bad_device_is_named(changes: dict[str, Any], id_: str, seen: str) -> None:
    (one,) = check_burn_in(replace(SOUND, devices=(*SOUND.devices[:3], replace(SOUND.devices[3], **changes))))
    assert (one.id, one.where, one.level) == (id_, "b: cuda:1", "error")
    assert seen in one.seen.replace("\u2068", "").replace("\u2069", "")
    assert "another node" in one.remedy


def test_processors_have_other_work_as_well() -> None:
    rows = [DeviceResult(node=n, device="cpu", name="x86_64", tflops=t) for n, t in (("a", 0.05), ("b", 0.03))]
    assert check_burn_in(BurnInResult(devices=tuple(rows))) == ()
    (one,) = check_burn_in(BurnInResult(devices=(rows[0], replace(rows[1], tflops=0.01))))
    assert (one.id, one.level) == ("device-slow", "warning")


@pytest.mark.parametrize(
    ("at", "changes", "id_", "where"),
    [
        (1, {"wrong": 12}, "reduce-wrong", "b"),
        (1, {"said": "it has not ended in time"}, "reduce-failed", "b"),
        (2, {"wrong": 1}, "reduce-wrong", "a and b"),
        (2, {"said": "1 of 4 ranks came to the end"}, "reduce-failed", "a and b"),
        (2, {"bytes_s": 1e9}, "link-slow", "a and b"),
    ],
)
def test_a_bad_way_is_named(at: int, changes: dict[str, Any], id_: str, where: str) -> None:
    (one,) = check_burn_in(with_way(at, **changes))
    assert (one.id, one.where) == (id_, where)
    if id_ == "link-slow":
        assert one.seen == "1.0 GB/s (8% of its link), 300.0 GB/s within the nodes"


def test_no_more_is_asked_of_a_way_than_its_nodes_can_do() -> None:
    """gloo on a processor does not fill a fast link."""
    ways = [AllReduceResult(nodes=(n,), ranks=2, bytes_s=0.9e9) for n in "ab"]
    link = AllReduceResult(nodes=("a", "b"), ranks=2, bytes_s=0.8e9, speed=400_000)
    assert check_burn_in(BurnInResult(ways=(*ways, link))) == ()


class Played:
    """Runs the script of a rank: `reports` are its rows by number of ranks."""

    def __init__(self, node: str, calls: list[tuple[str, ...]], reports: dict[str, dict[str, Any]]) -> None:
        self._node, self._calls, self._reports = node, calls, reports

    def run_python(self, args: tuple[str, ...]) -> Iterator[str]:
        self._calls.append((self._node, *args[4:]))
        yield "what a library prints at its start"
        for key, row in self._reports.items():
            yield json.dumps({key: row})


def played(monkeypatch: pytest.MonkeyPatch, **b: Any) -> tuple[ClusterContext, list[tuple[str, ...]]]:
    """Return the context of both nodes; `b` are reports of the second in place of sound ones."""
    sound = {"product": {"name": "x", "tflops": 0.05, "wrong": False}, "reduce": {"bytes_s": 1e9, "wrong": 0}}
    reports = {"a": sound, "b": b or sound}
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(burn_in, "create_runtime", lambda node, plan, member: Played(node, calls, reports[member.name]))
    context = SimpleNamespace(pool=SimpleNamespace(nodes={"a": "a", "b": "b"}), app=SimpleNamespace(say=print))
    return cast("ClusterContext", context), calls


def test_each_node_by_itself_then_both(monkeypatch: pytest.MonkeyPatch) -> None:
    context, calls = played(monkeypatch)
    proof, found = run_burn_in(context, plan(), FACTS)
    assert found == ()
    assert [(way.nodes, way.ranks) for way in proof.ways] == [(("a",), 2), (("b",), 2), (("a", "b"), 4)]
    assert [(one.node, one.device) for one in proof.devices] == [(n, f"cuda:{i}") for n in "ab" for i in (0, 1)]
    assert sorted(calls[-4:])[-1] == ("b", "3", "4", "cuda:1", "10.0.0.1", "8118")


def test_a_rank_that_never_comes_and_a_stack_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    context, __ = played(monkeypatch, product={"tflops": 0.05})
    with pytest.raises(NodeError, match="cluster pair does not stand the proof") as caught:
        require_burn_in(context, plan(), FACTS)
    assert caught.value.where == "b"
    assert "0 of 2 ranks came to the end" in caught.value.what
    context, __ = played(monkeypatch, missing="No module named 'torch'")
    proof, (one,) = run_burn_in(context, plan(), FACTS)
    assert (proof.missing, one.id, one.level, one.where) == (("b",), "proof-no-torch", "warning", "b")
    assert [way.nodes for way in proof.ways] == [("a",)]
