"""All-reduce over nodes, whose sums are known: the bad node or link is named, with the figure, and no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from clusterfacts import facts, plan

from rlbox.cluster import burn_in
from rlbox.cluster.burn_in import (
    AllReduceResult,
    BurnInResult,
    check_all_reduce,
    run_burn_in,
    run_burn_in_or_raise,
)
from rlbox.cluster.context import ClusterContext
from rlbox.errors import NodeError

FACTS = {"a": facts("a"), "b": facts("b")}
TOGETHER = AllReduceResult(nodes=("a", "b"), ranks=4, bytes_s=11e9, link_mbit_s=100_000)


def test_sound_nodes_have_no_finding() -> None:
    assert check_all_reduce(TOGETHER, 12.5e9) == []
    assert "11.0 GB/s (88% of its link)" in BurnInResult([TOGETHER], [], []).all_reduce_table()
    assert TOGETHER.as_json().keys() == {"nodes", "ranks", "bytes_s", "wrong", "said", "speed"}
    assert check_all_reduce(TOGETHER) == []  # neither nodes nor link tell what they can do


@pytest.mark.parametrize(
    ("changes", "id_"),
    [
        ({"wrong_sums": 12}, "reduce-wrong"),
        ({"error": "it has not ended in time"}, "reduce-failed"),
        ({"bytes_s": 1e9}, "link-slow"),
    ],
)
def test_a_bad_way_is_named(changes: dict[str, Any], id_: str) -> None:
    (one,) = check_all_reduce(TOGETHER._replace(**changes), 12.5e9)
    assert (one.id, one.where) == (id_, "a and b")


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
    proof = run_burn_in(context, plan(), FACTS)
    assert proof.findings == []
    assert [(way.nodes, way.ranks) for way in proof.all_reduces] == [(("a",), 2), (("b",), 2), (("a", "b"), 4)]
    assert sorted(calls[-4:])[-1] == ("b", "3", "4", "cuda:1", "10.0.0.1", "8118")


def test_a_bad_node_is_left_out_of_the_work_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    context, __ = played(monkeypatch, {"bytes_s": 1e9, "wrong": 3})
    proof = run_burn_in(context, plan(), FACTS)
    assert [(one.id, one.where) for one in proof.findings] == [("reduce-wrong", "b")]
    assert [way.nodes for way in proof.all_reduces] == [("a",), ("b",)]


def test_a_rank_that_fails_and_a_stack_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    context, __ = played(monkeypatch, {"error": "NCCL error"})
    with pytest.raises(NodeError, match="cluster pair does not stand the proof") as caught:
        run_burn_in_or_raise(context, plan(), FACTS)
    assert caught.value.where == "b"
    assert "NCCL error" in caught.value.what
    context, __ = played(monkeypatch, {"missing": "No module named 'torch'"})
    proof = run_burn_in(context, plan(), FACTS)
    (one,) = proof.findings
    assert (proof.nodes_without_torch, one.id, one.level, one.where) == (["b"], "proof-no-torch", "warning", "b")
    assert [way.nodes for way in proof.all_reduces] == [("a",)]
