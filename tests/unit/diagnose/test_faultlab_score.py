"""The score of the open half of the fault lab: what it must not fall below."""

from __future__ import annotations

import sys

import pytest
from fakes import CHECKOUT

ALWAYS = ("fatal", "quiet", "unknown kept", "node", "answer no victim")
LEAST = {"cause": 0.95, "line": 0.94, "rank": 0.85, "victims linked": 0.95, **dict.fromkeys(ALWAYS, 1.0)}
"""Shares of right answers."""
ORDERS = 3


def test_the_open_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(CHECKOUT / "tests/faultlab"), *sys.path])
    import score

    good, asked, wrong = score.table("open", score.shipped_judge)
    assert asked["fatal"] > 190
    assert asked["answer no victim"] >= 20
    low = {key: f"{good[key]} of {asked[key]}" for key, least in LEAST.items() if good[key] < least * asked[key]}
    assert low == {}, wrong


@pytest.mark.slow
def test_no_order_of_two_nodes_changes_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of `python tests/faultlab/interleavings.py`, which goes through 200 orders of each fault."""
    monkeypatch.setattr(sys, "path", [str(CHECKOUT / "tests/faultlab"), *sys.path])
    import interleavings

    runs = list(interleavings.runs_of_two_nodes())
    assert len(runs) == 16
    for one, files in runs:
        told = interleavings.told_of(one, files, ORDERS)
        assert told.others == {}, (one.recipe.name, one.env)
        assert told.same_words == told.asked, (one.recipe.name, one.env)
        assert told.root.node == one.recipe.node
