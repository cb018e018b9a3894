"""The score of the open half of the fault lab: what it must not fall below."""

from __future__ import annotations

import sys

import pytest
from fakes import CHECKOUT

LEAST = {"cause": 0.95, "line": 0.94, "rank": 0.85, **dict.fromkeys(("fatal", "quiet", "unknown kept", "node"), 1.0)}
"""Shares of right answers."""


def test_the_open_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(CHECKOUT / "tests/faultlab"), *sys.path])
    import score

    good, asked, wrong = score.table("open", score.shipped_judge)
    assert asked["fatal"] > 190
    low = {key: f"{good[key]} of {asked[key]}" for key, least in LEAST.items() if good[key] < least * asked[key]}
    assert low == {}, wrong
