"""All-reduce over nodes, whose sums are known: the bad node or link is named, with the figure, and no other."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from clusterfacts import facts, plan

from rlbox.cluster import burn_in
from rlbox.cluster.burn_in import AllReduceResult, BurnInResult, check_burn_in, run_burn_in, run_burn_in_or_raise
from rlbox.cluster.context import ClusterContext
from rlbox.errors import NodeError

FACTS = {"a": facts("a"), "b": facts("b")}
SOUND = (
    AllReduceResult(nodes=("a",), ranks=2, bytes_s=300e9),
    AllReduceResult(nodes=("b",), ranks=2, bytes_s=300e9),
    AllReduceResult(nodes=("a", "b"), ranks=4, bytes_s=11e9, link_mbit_s=100_000),
)


def test_sound_nodes_have_no_finding() -> None:
    result = BurnInResult(all_reduces=SOUND)
    assert check_burn_in(result) == ()
    assert "11.0 GB/s (88% of its link)" in result.text()


@pytest.mark.parametrize(
    ("at", "changes", "id_", "where"),
    [
        (1, {"wrong_sums": 12}, "reduce-wrong", "b"),
        (1, {"error": "it has not ended in time"}, "reduce-failed", "b"),
        (2, {"wrong_sums": 1}, "reduce-wrong", "a and b"),
        (2, {"error": "b: it said nothing"}, "reduce-failed", "a and b"),
        (2, {"bytes_s": 1e9}, "link-slow", "a and b"),
    ],
)
def test_a_bad_way_is_named(at: int, changes: dict[str, Any], id_: str, where: str) -> None:
    ways = [*SOUND]
    ways[at] = replace(ways[at], **changes)
    (one,) = check_burn_in(BurnInResult(all_reduces=tuple(ways)))
    assert (one.id, one.where) == (id_, where)
    if id_ == "link-slow":
        assert one.seen == "1.0 GB/s (8% of its link), 300.0 GB/s within the nodes"


def test_no_more_is_asked_of_a_way_than_its_nodes_can_do() -> None:
    """gloo on a processor does not fill a fast link."""
    ways = [AllReduceResult(nodes=(n,), ranks=2, bytes_s=0.9e9) for n in "ab"]
    link = AllReduceResult(nodes=("a", "b"), ranks=2, bytes_s=0.8e9, link_mbit_s=400_000)
    assert check_burn_in(BurnInResult(all_reduces=(*ways, link))) == ()


def played(monkeypatch: pytest.MonkeyPatch, b: dict[str, Any]) -> tuple[ClusterContext, list[tuple[str, ...]]]:
    """Return the context of both nodes, of which the second reports `b`, and what is run there."""
    reports = {"a": {"bytes_s": 1e9, "wrong": 0}, "b": b}
    calls: list[tuple[str, ...]] = []

    def run(node: str, plan: object, script: str, *arguments: str, timeout_s: float) -> dict[str, Any]:
        calls.append((node, *arguments[1:]))
        return reports[node]

    monkeypatch.setattr(burn_in, "run_packaged_script", run)
    context = SimpleNamespace(pool=SimpleNamespace(nodes={"a": "a", "b": "b"}), app=SimpleNamespace(print_status=print))
    return cast("ClusterContext", context), calls


def test_each_node_by_itself_then_both(monkeypatch: pytest.MonkeyPatch) -> None:
    context, calls = played(monkeypatch, {"bytes_s": 0.9e9, "wrong": 0})
    proof, found = run_burn_in(context, plan(), FACTS)
    assert found == ()
    assert [(way.nodes, way.ranks) for way in proof.all_reduces] == [(("a",), 2), (("b",), 2), (("a", "b"), 4)]
    assert sorted(calls[-4:])[-1] == ("b", "3", "4", "cuda:1", "10.0.0.1", "8118")


def test_a_rank_that_fails_and_a_stack_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    context, __ = played(monkeypatch, {"error": "NCCL error"})
    with pytest.raises(NodeError, match="cluster pair does not stand the proof") as caught:
        run_burn_in_or_raise(context, plan(), FACTS)
    assert caught.value.where == "b"
    assert "NCCL error" in caught.value.what
    context, __ = played(monkeypatch, {"missing": "No module named 'torch'"})
    proof, (one,) = run_burn_in(context, plan(), FACTS)
    assert (proof.nodes_without_torch, one.id, one.level, one.where) == (("b",), "proof-no-torch", "warning", "b")
    assert [way.nodes for way in proof.all_reduces] == [("a",)]
