"""The score of the open half of the fault lab: what it must not fall below."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from fakes import CHECKOUT

LEAST = {"cause": 0.95, "line": 0.94, "rank": 0.85, **dict.fromkeys(("fatal", "quiet", "unknown kept", "node"), 1.0)}
"""Shares of right answers."""
INTERLEAVINGS = int(os.environ.get("RLBOX_INTERLEAVINGS", "8"))


def test_the_open_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(CHECKOUT / "tests/faultlab"), *sys.path])
    import score

    good, asked, wrong = score.table("open", score.shipped_judge)
    assert asked["fatal"] > 190
    low = {key: f"{good[key]} of {asked[key]}" for key, least in LEAST.items() if good[key] < least * asked[key]}
    assert low == {}, wrong


def test_an_interleaving_of_two_nodes_changes_no_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(CHECKOUT / "tests/faultlab"), *sys.path])
    import interleave
    import score

    runs = [one for one in score.cases("open") if one.recipe.nodes == 2 and set(one.logs) == {""}]
    assert len(runs) >= 6
    for case in runs:
        told = set()
        for seed in range(INTERLEAVINGS):
            path = tmp_path / "launch.log"
            path.write_text(interleave.shuffled(case.logs[""], seed), "utf-8")
            answer = score.shipped_judge([path])
            own = answer["rank"] if case.recipe.rank is not None else None
            told.add((answer["cause"], answer["node"], own))
        assert len(told) == 1, (case.recipe.name, case.env, told)
        assert {node for _, node, _ in told} <= {case.recipe.node}
