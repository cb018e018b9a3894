"""Which folders of a run are results, and which export is the best: what a plan and a file of others say."""

from __future__ import annotations

from typing import Any

import pytest

from rlbox.evaluation.files import find_result_directories, get_data_disk_path, make_relative_to_disk


def test_the_folders_in_which_gates_ask_for_results() -> None:
    paths = (
        "/d/a/eval_history.jsonl",
        "/d/a/best_checkpoint.json",
        "/d/b/best_checkpoint.json",
        "/d/c/model.safetensors",
    )
    plan = {"stages": [{"files": [{"path": path} for path in paths]}, {"files": None}, 3]}
    assert find_result_directories(plan) == ["/d/a", "/d/b"]


@pytest.mark.parametrize("plan", [{}, {"stages": 1}, {"stages": [{"files": [1]}]}, {"paths": 3}])
def test_what_is_no_plan_has_none(plan: dict[str, Any]) -> None:
    assert (find_result_directories(plan), get_data_disk_path(plan)) == ([], "")


def test_a_path_is_below_one_of_the_names_of_the_disk() -> None:
    assert make_relative_to_disk("/data/a/b", ["/data", "/mnt/disk"]) == "a/b"
    assert make_relative_to_disk("/mnt/disk/a", ["/data", "/mnt/disk"]) == "a"
    for path in ("/etc", "a", "/data/../etc", "/mnt/disks/a"):
        with pytest.raises(ValueError, match="is not on the data disk /mnt/disk"):
            make_relative_to_disk(path, ["/data", "/mnt/disk"])
