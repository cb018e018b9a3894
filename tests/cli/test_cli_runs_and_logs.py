"""`rlbox runs` and `rlbox logs`, on a data disk with and without runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fakes import Folder, Rlbox, Said

from rlbox.files.act.folders import write_atomic


@pytest.fixture
def disk(folder: Folder, tmp_path: Path) -> Path:
    folder.target("local")
    path = tmp_path / "disk"
    path.mkdir()
    return path


def run(disk: Path, name: str, time: int) -> Path:
    """Make the folder of a run that left no state."""
    path = disk / "runs" / name
    write_atomic(path / "plan.json", json.dumps({}))
    os.utime(path / "plan.json", (time, time))
    return path


def test_no_runs(rlbox: Rlbox, disk: Path) -> None:
    assert rlbox("runs", "--data", str(disk)) == Said(code=0, out="no run yet\n", err="")
    assert rlbox("runs", "--data", str(disk), "--json").data == {"schema": 1, "runs": []}


def test_a_disk_that_is_not_there_has_no_runs(rlbox: Rlbox, disk: Path) -> None:
    assert rlbox("runs").out == "no run yet\n"
    assert not Path("~/disk").expanduser().exists()


def test_runs_without_a_state(rlbox: Rlbox, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(disk, "smoke-1", 100)
    run(disk, "smoke-2", 200)
    (disk / "runs/not-a-run").mkdir()
    monkeypatch.setenv("RLBOX_DATA", str(disk))
    said = rlbox("runs")
    assert said.code == 0
    assert [line.split()[:2] for line in said.out.splitlines()[1:]] == [["smoke-2", "unknown"], ["smoke-1", "unknown"]]


def test_no_logs(rlbox: Rlbox, disk: Path) -> None:
    assert rlbox("logs", "--data", str(disk)) == Said(
        code=2, out="", err=f"rlbox: error: no run yet\n  where: {disk}/runs\n  next:  rlbox runs\n"
    )
    run(disk, "smoke-1", 100)
    assert rlbox("logs", "--data", str(disk)) == Said(
        code=2,
        out="",
        err=f"rlbox: error: no such log\n  where: {disk}/runs/smoke-1/stages\n  next:  rlbox logs smoke-1\n",
    )


def test_logs(rlbox: Rlbox, disk: Path) -> None:
    run(disk, "smoke-2", 200)
    folder = run(disk, "smoke-1", 100)
    for name, text in {
        "1-train-only/stage": "loss 1\n",
        "2-rollout-only/stage": "asked\n",
        "2-rollout-only/vllm": "served \xe4\n",
    }.items():
        write_atomic(folder / f"stages/{name}.log", text)
    data = ("--data", str(disk))
    assert rlbox("logs", "smoke-1", *data) == Said(
        code=0,
        out="loss 1\nasked\nserved \xe4\n",
        err="==> stages/1-train-only/stage.log <==\n==> stages/2-rollout-only/stage.log <==\n"
        "==> stages/2-rollout-only/vllm.log <==\n",
    )
    assert rlbox("logs", "smoke-1", "--stage", "rollout-only", "--log", "stage", *data).out == "asked\n"
    assert rlbox("logs", "smoke-1", "--log", "vllm", "-q", *data) == Said(code=0, out="served \xe4\n", err="")
    assert rlbox("logs", "smoke-1", "--json", *data).data["logs"] == [
        str(folder / f"stages/{name}.log")
        for name in ("1-train-only/stage", "2-rollout-only/stage", "2-rollout-only/vllm")
    ]
    assert rlbox("logs", "smoke-1", "--log", "ray", *data).code == 2


def test_the_beginning_of_a_name_will_do(rlbox: Rlbox, disk: Path) -> None:
    for name in ("smoke-1", "smoke-2", "other-1"):
        write_atomic(run(disk, name, 100) / "stages/1-a/stage.log", f"{name}\n")
    data = ("--data", str(disk))
    assert rlbox("logs", "oth", *data).out == "other-1\n"
    assert rlbox("logs", "smo", *data).err == (
        f"rlbox: error: 2 runs begin with 'smo'\n  where: {disk}/runs\n  next:  rlbox runs\n"
    )
    assert rlbox("logs", "zzz", *data).err == (
        f"rlbox: error: no run 'zzz'\n  where: {disk}/runs\n  next:  rlbox runs\n"
    )
