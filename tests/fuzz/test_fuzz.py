"""A sample of the campaign of `make fuzz`, and that it notices what it is for."""

from __future__ import annotations

import json

import pytest
from fuzz.campaign import campaign

CASES = 20_000


def test_a_sample() -> None:
    fell, told, slowest = campaign(CASES, seed=7)
    assert fell == []
    assert sum(told.values()) == CASES
    assert slowest < 1


def test_a_reader_without_bounds_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlbox.gate.metric.parse_json", json.loads)
    fell, _, _ = campaign(4_000, seed=7)
    assert any("OverflowError" in text for text in fell)
