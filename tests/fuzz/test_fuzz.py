"""A sample of the campaigns of `make nightly ARGS=fuzz`, and that they notice what they are for."""

from __future__ import annotations

import json
import sys

import pytest
from fuzz import command_lines
from fuzz.campaign import campaign

from rlbox.cli.root import COMMANDS

CASES = 20_000
LINES = 250


def test_a_sample() -> None:
    fell, told, slowest = campaign(CASES, seed=7)
    assert fell == []
    assert sum(told.values()) == CASES
    assert slowest < 1


def test_a_reader_without_bounds_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlbox.gate.metric.parse_json", json.loads)
    fell, _, _ = campaign(4_000, seed=7)
    assert any("OverflowError" in text for text in fell)


def test_a_sample_of_command_lines() -> None:
    fell, told = command_lines.campaign(LINES, seed=7)
    assert fell == []
    assert set(COMMANDS) <= set(told)


def test_a_verb_that_breaks_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlbox.config.project.Project.jobs", lambda project: {}["nothing"])
    fell, _ = command_lines.campaign(60, seed=7)
    assert any("rlbox: bug: KeyError" in text for text in fell)
    monkeypatch.setattr("rlbox.config.project.Project.jobs", lambda project: sys.exit(3))
    fell, _ = command_lines.campaign(60, seed=7)
    assert any("SystemExit: 3" in text for text in fell)
