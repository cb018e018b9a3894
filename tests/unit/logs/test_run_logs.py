"""Which files of a run are its logs."""

from __future__ import annotations

from pathlib import Path

from rlbox.logs.run_logs import list_logs_or_empty


def test_a_folder_in_the_place_of_a_log_is_none(tmp_path: Path) -> None:
    first, second = tmp_path / "stages/1-first/stage.log", tmp_path / "stages/2-second/stage.log"
    first.parent.mkdir(parents=True)
    first.write_text("line\n")
    second.mkdir(parents=True)
    assert list_logs_or_empty(tmp_path, None, None) == [first]
