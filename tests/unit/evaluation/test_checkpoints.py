"""What a tracker may say that is no step."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlbox.evaluation.checkpoints import analyze_checkpoint_series, find_checkpoints_by_parent


@pytest.mark.parametrize(("tracker", "unfinished"), [("2", True), ("3", False), ("²", False), ("9" * 4000, False)])
def test_a_step_beyond_the_tracker_was_never_finished(tmp_path: Path, tracker: str, unfinished: bool) -> None:
    (tmp_path / "global_step_3").mkdir()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text(tracker)
    ((directory, checkpoints),) = find_checkpoints_by_parent(tmp_path).items()
    (checkpoint,) = analyze_checkpoint_series(directory, checkpoints).checkpoints
    assert any("never finished" in problem for problem in checkpoint.problems) is unfinished
