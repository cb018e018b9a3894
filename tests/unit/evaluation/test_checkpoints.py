"""What a tracker may say that is no step."""

from __future__ import annotations

import pytest

from rlbox.evaluation.checkpoints import ScannedCheckpoint, analyze_series


@pytest.mark.parametrize(("tracker", "unfinished"), [("2", True), ("3", False), ("²", False), ("9" * 5000, False)])
def test_a_step_beyond_the_tracker_was_never_finished(tracker: str, unfinished: bool) -> None:
    row = ScannedCheckpoint(path="/c/global_step_3", framework="verl", step=3, files=())
    (found,) = analyze_series("/c", [row], tracker).checkpoints
    assert any("never finished" in problem for problem in found.problems) is unfinished
