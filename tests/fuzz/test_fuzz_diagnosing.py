"""A sample of `make nightly ARGS=fuzz/diagnose`, and that it notices what it is for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz.diagnosing import Judged, campaign, round_of

CASES = 400


@pytest.fixture
def judged(tmp_path: Path) -> Iterator[Judged]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fuzz.diagnosing.MOST_S", 30.0)  # on a machine that others use
        yield Judged(tmp_path)


def test_a_sample(judged: Judged) -> None:
    round_of(judged, 7, CASES)
    assert sum(count for what, count in judged.told.items() if what != "followed") >= CASES
    assert judged.told["unknown"] > 20
    assert judged.told["followed"] > 5
    assert len(judged.told) > 6


def test_a_campaign_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[tuple[int, int]] = []
    monkeypatch.setattr("fuzz.diagnosing.round_of", lambda judged, number, cases: rounds.append((number, cases)))
    progress = tmp_path / "lanes/progress.json"
    assert campaign(700, 2, progress, seconds=1e9) == 700
    assert json.loads(progress.read_text()) == {"seed": 2, "done": 700}
    assert campaign(1200, 2, progress, begin=700) == 1200
    assert rounds == [(2_000_006, 500), (2_000_506, 200), (2_000_706, 500)]
    assert campaign(5000, 2, None, seconds=0.0) == 0


@pytest.mark.parametrize(
    ("what", "broken"),
    [
        ("rlbox.diagnose.diagnosis.Diagnosis.confidence", 2.0),
        ("rlbox.diagnose.diagnosis.get_full_line", lambda case: case.text.encode("utf-8", "replace")),
    ],
)
def test_what_breaks_falls(judged: Judged, monkeypatch: pytest.MonkeyPatch, what: str, broken: object) -> None:
    monkeypatch.setattr(what, broken)
    with pytest.raises((AssertionError, ValueError, TypeError)):
        round_of(judged, 7, CASES)
