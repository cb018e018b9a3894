"""All-reduce over nodes, whose sums are known: the bad node or link is named, with the figure, and no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from clusterfacts import plan, survey

from rlbox.cluster import checks
from rlbox.cluster.checks import AllReduceResult, BurnInResult, run_all_reduce_checks
from rlbox.cluster.nodes import ClusterContext
from rlbox.errors import MachineError

TOGETHER = AllReduceResult(("a", "b"), 4, bytes_s=11e9, link_mbit_s=100_000, possible_bytes_s=12.5e9)


def test_sound_nodes_have_no_finding() -> None:
    assert TOGETHER.find_faults() == []
    assert "11.0 GB/s (88% of its link)" in BurnInResult([TOGETHER]).all_reduce_table()
    assert TOGETHER.as_json().keys() == {"nodes", "ranks", "bytes_s", "wrong", "said", "speed"}
    assert TOGETHER._replace(bytes_s=1.0, possible_bytes_s=0.0).find_faults() == []


@pytest.mark.parametrize(
    ("changes", "id_"),
    [
        ({"wrong_sums": 12}, "reduce-wrong"),
        ({"error": "it has not ended in time"}, "reduce-failed"),
        ({"bytes_s": 1e9}, "link-slow"),
    ],
)
def test_a_bad_way_is_named(changes: dict[str, Any], id_: str) -> None:
    (one,) = TOGETHER._replace(**changes).find_faults()
    assert (one.id, one.where) == (id_, "a and b")


def played(monkeypatch: pytest.MonkeyPatch, b: dict[str, Any]) -> tuple[ClusterContext, list[tuple[Any, ...]]]:
    """Return the context of both nodes, of which the second reports `b`, and what is run there."""
    reports = {"a": {"bytes_s": 1e9, "wrong": 0}, "b": b}
    calls: list[tuple[Any, ...]] = []

    def run(node: str, plan: object, call: str, **arguments: Any) -> dict[str, Any]:
        calls.append((node, call, *arguments.values()))
        if "error" in reports[node]:
            raise MachineError(str(reports[node]["error"]))
        return reports[node]

    monkeypatch.setattr(checks, "ask_in_stack", run)
    context = SimpleNamespace(pool=SimpleNamespace(nodes={"a": "a", "b": "b"}), app=SimpleNamespace(print_status=print))
    return cast("ClusterContext", context), calls


def test_each_node_by_itself_then_both(monkeypatch: pytest.MonkeyPatch) -> None:
    context, calls = played(monkeypatch, {"bytes_s": 0.9e9, "wrong": 0})
    proof = run_all_reduce_checks(context, plan(), survey())
    assert proof.findings == []
    assert [(way.nodes, way.ranks) for way in proof.all_reduces] == [(("a",), 2), (("b",), 2), (("a", "b"), 4)]
    assert sorted(calls[-4:])[-1] == ("b", "reduce", 3, 4, "cuda:1", "10.0.0.1", 8118)


def test_a_bad_node_is_left_out_of_the_work_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    context, __ = played(monkeypatch, {"bytes_s": 1e9, "wrong": 3})
    proof = run_all_reduce_checks(context, plan(), survey())
    assert [(one.id, one.where) for one in proof.findings] == [("reduce-wrong", "b")]
    assert [way.nodes for way in proof.all_reduces] == [("a",), ("b",)]


def test_a_rank_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    context, __ = played(monkeypatch, {"error": "NCCL error"})
    (one,) = run_all_reduce_checks(context, plan(), survey()).findings
    assert (one.id, one.where, one.seen) == ("reduce-failed", "b", "b: NCCL error")
