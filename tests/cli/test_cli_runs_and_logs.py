"""`rlbox runs` and `rlbox logs`, on a data disk with and without runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fakes import Folder, Rlbox, Said

from rlbox.system.files import write_atomic


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
    rlbox("logs", "--data", str(disk)).check_error(2, "no run yet")
    run(disk, "smoke-1", 100)
    rlbox("logs", "--data", str(disk)).check_error(2, "no log yet")


def test_logs(rlbox: Rlbox, disk: Path) -> None:
    run(disk, "smoke-2", 200)
    folder = run(disk, "smoke-1", 100)
    for name, text in {
        "1-train-only/stage": "loss 1\n",
        "2-rollout-only/stage": "asked\n",
        "2-rollout-only/vllm": "served \xe4",
    }.items():
        write_atomic(folder / f"stages/{name}.log", text)
    data = ("--data", str(disk))
    assert rlbox("logs", "smoke-1", *data) == Said(
        code=0,
        out="==> stages/1-train-only/stage.log <==\nloss 1\n==> stages/2-rollout-only/stage.log <==\nasked\n"
        "==> stages/2-rollout-only/vllm.log <==\nserved \xe4",
        err="",
    )
    assert rlbox("logs", "smoke-1", "-q", *data) == Said(code=0, out="loss 1\nasked\nserved \xe4", err="")
    one = rlbox("logs", "smoke-1", "--log", "vllm", *data)
    assert one == Said(code=0, out="served \xe4", err="==> stages/2-rollout-only/vllm.log <==\n")
    assert rlbox("logs", "smoke-1", "--stage", "rollout-only", "--log", "stage", *data).out == "asked\n"
    assert rlbox("logs", "smoke-1", "--log", "vllm", "-q", *data) == Said(code=0, out="served \xe4", err="")
    assert rlbox("logs", "smoke-1", "--json", *data).data["logs"] == [
        str(folder / f"stages/{name}.log")
        for name in ("1-train-only/stage", "2-rollout-only/stage", "2-rollout-only/vllm")
    ]
    for more in (["--log", "ray"], ["--stage", "ray"], ["--log", "ray", "-f"]):
        rlbox("logs", "smoke-1", *more, *data).check_error(
            2, "no such log", "--stage rollout-only --log stage, --log vllm"
        )


def test_the_last_lines_of_each_log(rlbox: Rlbox, disk: Path) -> None:
    """As they are shown: what a carriage return would overwrite is a line, one that has not ended is one, too."""
    folder = run(disk, "smoke-1", 100)
    write_atomic(folder / "stages/1-a/stage.log", "".join(f"{number}\n" for number in range(20)))
    write_atomic(folder / "stages/2-b/stage.log", "x\n1\r2\r3\r\n4\r5\nlast")
    data = ("--data", str(disk), "-q")
    assert rlbox("logs", "-n", "3", *data).out == "17\n18\n19\n4\n5\nlast"
    assert rlbox("logs", "-n", "5", "--stage", "b", *data).out == "2\n3\n4\n5\nlast"
    assert rlbox("logs", "-n", "100", "--stage", "b", *data).out == "x\n1\n2\n3\n4\n5\nlast"
    assert rlbox("logs", "-n", "0", *data).out == ""
    assert rlbox("logs", "-n", "2", "-f", "--stage", "a", *data).out == "18\n19\n"
    assert rlbox("logs", "-f", "--stage", "a", *data).out == "".join(f"{number}\n" for number in range(10, 20))


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


@pytest.mark.parametrize(
    ("words", "offers"),
    [
        ("logs smoke", ["smoke-2", "smoke-1"]),
        ("stop smoke-1", ["smoke-1"]),
        ("run --resume smoke", ["smoke-2", "smoke-1"]),
        ("runs diff smoke-1 smoke-2", ["smoke-2"]),
        ("logs --data MISSING smoke", []),
    ],
)
def test_what_tab_offers_of_runs(
    rlbox: Rlbox, disk: Path, monkeypatch: pytest.MonkeyPatch, words: str, offers: list[str]
) -> None:
    run(disk, "smoke-2", 200)
    run(disk, "smoke-1", 100)
    monkeypatch.setenv("RLBOX_DATA", str(disk))
    typed = f"rlbox {words.replace('MISSING', str(disk / 'missing'))}"
    assert rlbox.offers(typed) == [f"plain,{offer}" for offer in offers]


def test_a_log_without_a_last_line_end_hides_no_name(rlbox: Rlbox, disk: Path) -> None:
    folder = run(disk, "smoke-1", 100)
    for name, text in {"1-train-only/stage": "cut off", "2-rollout-only/stage": "asked\n"}.items():
        write_atomic(folder / f"stages/{name}.log", text)
    said = rlbox("logs", "--data", str(disk))
    assert "cut off\n==> stages/2-rollout-only/stage.log <==\nasked\n" in said.out
