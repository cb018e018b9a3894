"""vast/stay: what an instance is for, and what of it comes home."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rlbox.errors import SpecError
from rlbox.vast.remote_job import (
    RemoteJob,
    format_job_agent_start_shell,
    list_run_and_complete_checkpoint_dirs,
    parse_remote_job,
    strip_disk_prefix_or_raise,
)

pytestmark = pytest.mark.allow("processes")
STAY = RemoteJob(job="sft", disk="/workspace", words=("--set", "a=b c"), then="stop")


def test_a_stay_is_read_as_it_was_written() -> None:
    assert parse_remote_job(STAY.to_json_text()) == STAY


def test_whole_checkpoints_and_all_runs_come_home() -> None:
    rows = [{"path": "/workspace/ckpts/global_step_10", "whole": True}, {"path": "/workspace/ckpts/x", "whole": False}]
    inside = {"path": "/workspace/runs/a/out", "checkpoints": [{"path": "/workspace/runs/a/out/c", "whole": True}]}
    series = [{"path": "/workspace/ckpts", "checkpoints": rows}, inside]
    assert list_run_and_complete_checkpoint_dirs([{"run": "a"}], series, "/workspace") == (
        "ckpts/global_step_10",
        "ckpts/latest",
        "ckpts/latest_checkpointed_iteration.txt",
        "runs/a",
    )


@pytest.mark.parametrize("path", ["../etc/passwd", "/etc/passwd", "a/../../b"])
def test_nothing_beside_the_disk_is_brought(path: str) -> None:
    with pytest.raises(SpecError, match="is not on the data disk /workspace"):
        strip_disk_prefix_or_raise(path, "/workspace")


def test_every_start_of_an_instance_without_a_stay_does_nothing(tmp_path: Path) -> None:
    done = subprocess.run(["sh", "-c", format_job_agent_start_shell(str(tmp_path))], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_instance_without_rlbox_says_so(tmp_path: Path) -> None:
    (tmp_path / ".rlbox-up").mkdir()
    (tmp_path / ".rlbox-up/job.json").write_text(STAY.to_json_text())
    text = format_job_agent_start_shell(str(tmp_path)).replace("/opt/rlbox", f"{tmp_path}/nowhere")
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True)
    assert (done.returncode, "this instance has no rlbox" in done.stderr) == (1, True)
