"""What nodes did with work whose result is known: the bad one is named, with the figure, and no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from clusterfacts import facts, gpu, plan

from rlbox.amounts import GIB
from rlbox.cluster import burn_in as acting
from rlbox.cluster.burn_in import (
    AllReduceResult,
    BurnInResult,
    DeviceResult,
    check_burn_in,
    require_burn_in,
    run_burn_in,
)
from rlbox.cluster.context import ClusterContext
from rlbox.cluster.facts import GpuProcess, InterfaceAddress, NodeFacts, NodeGpus
from rlbox.errors import NodeError
from rlbox.findings import Finding

FACTS = {"a": facts("a"), "b": facts("b")}
SOUND = BurnInResult(
    devices=tuple(DeviceResult(node=n, device=f"cuda:{i}", name="H100", tflops=600.0) for n in "ab" for i in (0, 1)),
    ways=(
        AllReduceResult(nodes=("a",), ranks=2, bytes_s=300e9),
        AllReduceResult(nodes=("b",), ranks=2, bytes_s=300e9),
        AllReduceResult(nodes=("a", "b"), ranks=4, bytes_s=11e9, speed=100_000),
    ),
)


def judged(proof: BurnInResult, known: dict[str, NodeFacts] | None = None) -> list[Finding]:
    return list(check_burn_in(proof, known or FACTS))


def plain(text: str) -> str:
    """Return a text without the marks around other people's words."""
    return text.replace("", "").replace("", "")


def with_device(**changes: Any) -> BurnInResult:
    """`b`'s second GPU did otherwise."""
    return replace(SOUND, devices=(*SOUND.devices[:3], replace(SOUND.devices[3], **changes)))


def with_way(at: int, **changes: Any) -> BurnInResult:
    ways = list(SOUND.ways)
    ways[at] = replace(ways[at], **changes)
    return replace(SOUND, ways=tuple(ways))


def test_sound_nodes_have_no_finding() -> None:
    assert judged(SOUND) == []
    assert "11.0 GB/s, 4 ranks, 88% of its link" in SOUND.text()
    assert "600 TFLOP/s" in SOUND.text()
    assert SOUND.as_json()["ways"][2]["nodes"] == ("a", "b")


@pytest.mark.parametrize(
    ("changes", "id_", "seen"),
    [
        ({"wrong": True}, "product-wrong", "at 600 TFLOP/s"),
        ({"tflops": 310.0}, "device-slow", "310 TFLOP/s, the others 600: bob (77, python train.py)"),
        ({"tflops": 0.0, "said": "CUDA error: an illegal"}, "product-failed", "CUDA error: an illegal"),
        (
            {"tflops": 0.0, "said": "OutOfMemoryError: …", "free": GIB, "total": 80 * GIB},
            "gpu-filled",
            "1.0 GiB of 80.0 GiB free: bob (77, python train.py)",
        ),
    ],
)
def test_a_bad_device_is_named(changes: dict[str, Any], id_: str, seen: str) -> None:
    held = GpuProcess(uuid="GPU-1", pid=77, used=GIB, command="python train.py", user="bob")
    known = {**FACTS, "b": facts("b", gpu=NodeGpus(gpus=(gpu(0), gpu(1)), holders=(held,)))}
    (one,) = judged(with_device(**changes), known)
    assert (one.id, one.where, one.level, plain(one.seen)) == (id_, "b: cuda:1", "error", seen)
    assert "another node" in one.remedy


def test_a_gpu_that_somebody_keeps_busy_is_named() -> None:
    held = GpuProcess(uuid="GPU-1", pid=77, used=GIB, command="python train.py", user="bob")
    known = {**FACTS, "b": facts("b", gpu=NodeGpus(gpus=(gpu(0), gpu(1, busy=97)), holders=(held,)))}
    (one,) = judged(SOUND, known)
    assert (one.id, one.where) == ("gpu-busy", "b: cuda:1")
    assert plain(one.seen) == "97 % of the time: bob (77, python train.py)"


def test_processors_have_other_work_as_well() -> None:
    rows = [DeviceResult(node=n, device="cpu", name="x86_64", tflops=t) for n, t in (("a", 0.05), ("b", 0.03))]
    assert judged(BurnInResult(devices=tuple(rows))) == []
    (one,) = judged(BurnInResult(devices=(rows[0], replace(rows[1], tflops=0.01))))
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
    (one,) = judged(with_way(at, **changes))
    assert (one.id, one.where) == (id_, where)
    if id_ == "link-slow":
        assert one.seen == "1.0 GB/s, 8% of its link, 300.0 GB/s within the nodes"


def test_no_more_is_asked_of_a_way_than_its_nodes_can_do() -> None:
    """gloo on a processor does not fill a fast link."""
    ways = [AllReduceResult(nodes=(n,), ranks=2, bytes_s=0.9e9) for n in "ab"]
    assert (
        judged(BurnInResult(ways=(*ways, AllReduceResult(nodes=("a", "b"), ranks=2, bytes_s=0.8e9, speed=400_000))))
        == []
    )
    (one,) = judged(BurnInResult(ways=(*ways, AllReduceResult(nodes=("a", "b"), ranks=2, bytes_s=0.02e9))))
    assert (one.id, one.seen) == ("link-slow", "20.0 MB/s, 900.0 MB/s within the nodes")


# ---- the work itself, played


class Played:
    """Runs the program of a node: rows by what it is to do."""

    def __init__(self, node: str, asked: list[tuple[str, ...]], rows: dict[str, list[dict[str, Any]]]) -> None:
        self._node, self._asked, self._rows = node, asked, rows

    def run_python(self, args: tuple[str, ...]) -> Iterator[str]:
        what = args[4:]
        self._asked.append((self._node, *what))
        yield "what a library prints at its start"
        for row in self._rows[" ".join(what[:2])]:
            yield json.dumps(row)


def played(
    monkeypatch: pytest.MonkeyPatch, **rows: dict[str, list[dict[str, Any]]]
) -> tuple[ClusterContext, list[Any]]:
    usual = {
        "product": [{"device": "cpu", "name": "x86_64", "tflops": 0.05, "wrong": False}],
        "rank 0": [{"port": 4711}, {"rank": 0, "bytes_s": 1e9, "wrong": 0}],
        "rank 1": [{"rank": 1, "bytes_s": 0.9e9, "wrong": 0}],
    }
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(
        acting, "create_runtime", lambda node, plan, member: Played(node, asked, {**usual, **rows.get(member.name, {})})
    )
    links = {"a": "a", "b": "b"}
    context = SimpleNamespace(pool=SimpleNamespace(nodes=links), app=SimpleNamespace(say=lambda text: None))
    return cast("ClusterContext", context), asked


def test_devices_then_each_node_then_both(monkeypatch: pytest.MonkeyPatch) -> None:
    context, asked = played(monkeypatch)
    address = InterfaceAddress(interface="ib0", address="10.0.0.2", mtu=1500, speed=25_000)
    known = {**FACTS, "b": facts("b", addresses=(address,))}
    proof, found = run_burn_in(context, plan(), known)
    assert found == ()
    assert [(way.nodes, way.ranks, way.bytes_s, way.speed) for way in proof.ways] == [
        (("a",), 2, 0.9e9, 0),
        (("b",), 2, 0.9e9, 0),
        (("a", "b"), 2, 0.9e9, 0),  # a does not tell how fast its end is
    ]
    assert asked[-2:] == [
        ("a", "rank", "0", "2", "cpu", "10.0.0.1", "0"),
        ("b", "rank", "1", "2", "cpu", "10.0.0.1", "4711"),
    ]


def test_a_rank_that_never_comes_and_a_stack_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    context, _ = played(monkeypatch, b={"rank 1": []})
    with pytest.raises(NodeError, match="cluster pair does not stand the proof") as caught:
        require_burn_in(context, plan(), FACTS)
    assert caught.value.where == "b"
    assert "1 of 2 ranks came to the end" in caught.value.what
    context, _ = played(monkeypatch, b={"product": [{"missing": "No module named 'torch'"}]})
    proof, (one,) = run_burn_in(context, plan(), FACTS)
    assert (proof.missing, one.id, one.level, one.where) == (("b",), "proof-no-torch", "warning", "b")
    assert [way.nodes for way in proof.ways] == [("a",)]
