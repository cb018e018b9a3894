"""vast/stay, ssh/listing: what an instance is for, and what of it comes home."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlbox.errors import SpecError, WorkFailed
from rlbox.ssh.listing import PROGRAM, RemoteFile, read_listing
from rlbox.vast.stay import Stay, below, keep_text, read_stay, wanted_paths

pytestmark = pytest.mark.allow("processes")
STAY = Stay(job="sft", disk="/workspace", words=("--set", "a=b c"), then="stop", notify="https://hooks.example/x")


def test_a_stay_is_read_as_it_was_written() -> None:
    assert read_stay(STAY.text()) == STAY


@pytest.mark.parametrize("text", ["", "{", "[]", '{"job": "sft"}', '{"job": 1, "disk": 2, "words": 3}'])
def test_what_is_no_stay(text: str) -> None:
    with pytest.raises(SpecError, match="is not what `rlbox vast up` writes"):
        read_stay(text)


def test_whole_checkpoints_and_all_runs_come_home() -> None:
    rows = [{"path": "/workspace/ckpts/global_step_10", "whole": True}, {"path": "/workspace/ckpts/x", "whole": False}]
    inside = {"path": "/workspace/runs/a/out", "checkpoints": [{"path": "/workspace/runs/a/out/c", "whole": True}]}
    series = [{"path": "/workspace/ckpts", "checkpoints": rows}, inside]
    assert wanted_paths([{"run": "a"}], series, "/workspace") == (
        "ckpts/global_step_10",
        "ckpts/latest",
        "ckpts/latest_checkpointed_iteration.txt",
        "runs/a",
    )


@pytest.mark.parametrize("path", ["../etc/passwd", "/etc/passwd", "a/../../b"])
def test_nothing_beside_the_disk_is_brought(path: str) -> None:
    with pytest.raises(SpecError, match="is not on the data disk /workspace"):
        below(path, "/workspace")


def test_every_start_of_an_instance_without_a_stay_does_nothing(tmp_path: Path) -> None:
    done = subprocess.run(["sh", "-c", keep_text(str(tmp_path))], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_instance_without_rlbox_says_so(tmp_path: Path) -> None:
    (tmp_path / ".rlbox-up").mkdir()
    (tmp_path / ".rlbox-up/stay.json").write_text(STAY.text())
    text = keep_text(str(tmp_path)).replace("/opt/rlbox", f"{tmp_path}/nowhere")
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True)
    assert (done.returncode, "this instance has no rlbox" in done.stderr) == (1, True)


def listed(base: Path, *roots: str, sums: bool = True) -> str:
    words = [sys.executable, "-c", PROGRAM, str(base), "sums" if sums else "times"]
    return subprocess.run(words, input="\n".join(roots), capture_output=True, text=True, check=True).stdout


def test_files_of_a_machine(tmp_path: Path) -> None:
    folder = tmp_path / "runs/a"
    folder.mkdir(parents=True)
    (folder / "log 1\n").write_text("hello\n")
    (folder / ".reserve").write_text("space")
    (folder / "link").symlink_to("/etc/passwd")
    (tmp_path / "at").write_text("")
    files, troubles = read_listing(listed(tmp_path, "runs/a", "nowhere", "at"))
    assert [(file.path, file.size) for file in files] == [("runs/a/log 1\n", 6), ("at", 0)]
    assert files[0].sha256 == "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
    assert troubles == ()
    (bare, _), _ = read_listing(listed(tmp_path, "runs/a", "at", sums=False))
    assert (bare.sha256, bare.same(files[0]), bare.same(None)) == ("", True, False)


@pytest.mark.parametrize(
    "row",
    [{"path": "/etc/x", "size": 1, "mtime": 1}, {"path": "../x", "size": 1, "mtime": 1}, {"path": "x"}, "x", 1, {}],
)
def test_a_list_that_is_none(row: object) -> None:
    with pytest.raises(WorkFailed, match="the list of files"):
        read_listing(json.dumps(row))


def test_what_cannot_be_read_is_told() -> None:
    files, troubles = read_listing(json.dumps({"path": "x", "size": 0, "mtime": 0, "trouble": "Permission denied"}))
    assert (files, troubles) == ((), ("x: Permission denied",))


def test_same() -> None:
    one = RemoteFile(path="a", size=1, mtime=2, sha256="x")
    assert one.same(RemoteFile(path="a", size=1, mtime=2))
    assert not one.same(RemoteFile(path="a", size=1, mtime=3))
