"""The logs of a run are found in the order of its stages."""

from __future__ import annotations

from pathlib import Path

from rlbox.logs.run_logs import list_logs_or_empty


def test_folders_with_other_names_than_stages_have(tmp_path: Path) -> None:
    names = ("02-b", "1-a", "²-c", f"{'9' * 200}-d", "e")
    for name in names:
        (tmp_path / "stages" / name).mkdir(parents=True)
        (tmp_path / "stages" / name / "stage.log").touch()
    found = [path.parent.name for path in list_logs_or_empty(tmp_path, None, None)]
    assert sorted(found) == sorted(names)
    assert found[-2:] == ["1-a", "02-b"]
