"""The live view: what a terminal of any size is given, and what stays on it."""

from __future__ import annotations

import dataclasses
import fcntl
import io
import json
import os
import re
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlbox.amounts import duration_text
from rlbox.gate.line_rules import RuleState
from rlbox.record.resources import RESOURCES_FILE
from rlbox.record.state import RunState, ServiceState, StageState, write_run_state
from rlbox.report.run_view import _LiveView, open_run_view, read_run_snapshot, render_run_frame
from rlbox.secrets.masks import SecretMasker
from rlbox.terminal import sanitize_for_terminal

pytestmark = pytest.mark.allow("processes")

NOW = 1_800_000_000.0
BEGAN = "2027-01-15T07:00:00.000+00:00"
COLOURED = "step 7 loss 0.25 \x1b[31mred\x1b[0m"


def stage(name: str, state: str = "waiting", **more: Any) -> StageState:
    fields = {"name": name, "title": name, "directory": f"stages/{name}", "state": state, **more}
    return StageState(**fields)


def run(*stages: StageState, **more: Any) -> RunState:
    fields = {"run_id": "smoke-1", "job": "smoke", "target": "local", "place": "here", "profile": "learn", **more}
    return RunState(**fields, supervisor_pid=1, started_at=BEGAN, stages=stages)


TRAINING = stage(
    "train",
    "running",
    started_at=BEGAN,
    services=(ServiceState(name="vllm", title="", state="ready"),),
    gate=(
        RuleState(kind="require", rule="saved", state="waiting"),
        RuleState(kind="require", rule="step", state="waiting", count=2),
        RuleState(kind="forbid", rule="CUDA"),
        RuleState(kind="exit", rule="exit code 0"),
        RuleState(kind="service", rule="vllm", state="held"),
    ),
)
STATE = run(stage("data", "passed", started_at=BEGAN, ended_at=BEGAN), TRAINING, stage("eval"))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "stages/train"
    folder.mkdir(parents=True)
    bar = b"\xff 25%|##  | 50/200 [10:00<05:00, 2.0s/it]\n"
    (folder / "stage.log").write_bytes(bar + COLOURED.encode() + b"\r\n")
    speed = "Avg prompt throughput: 40.7 tokens/s, Avg generation throughput: 104.5 tokens/s,\n"
    (folder / "vllm.log").write_text(speed)
    os.utime(folder / "vllm.log", (1, 1))
    rows = [
        {"t": f"2027-01-15T07:5{n}:00.000+00:00", "stage": "train", "phase": "rollout", "cpu_pct": 150.2,
         "resident_bytes": 3 << 30, "read_bps": 5e6, "disk_free_bytes": 10**9 - n * 10**8,
         "gpus": [{"index": 0, "utilization": 97, "power_w": 312.0, "memory_bytes": 40 * 10**9}]}
        for n in range(5)
    ]  # fmt: skip
    (tmp_path / RESOURCES_FILE).write_text("torn\n" + "\n".join(map(json.dumps, rows)) + "\n{")
    metrics = ({"stage": "train", "step": 7, "mean_reward": 0.5}, {"stage": "other", "loss": 9})
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, metrics)))
    return tmp_path


def shown(run_dir: Path, width: int = 79, height: int = 23, state: RunState = STATE) -> list[str]:
    lines = render_run_frame(read_run_snapshot(run_dir, state), NOW, width=width, height=height)
    return [sanitize_for_terminal(line.plain) for line in lines]


def test_the_limit_and_the_pressure_are_told(run_dir: Path) -> None:
    row = {"t": "2027-01-15T07:56:00.000+00:00", "stage": "train", "cpu_pct": 20, "held_pct": 80, "load": 4.06,
           "share_pct": 3, "others_pct": 190,
           "waits_cpu_pct": 47.34, "waits_io_pct": 12, "waits_memory_pct": 0.2}  # fmt: skip
    with open(run_dir / RESOURCES_FILE, "w") as rows:
        rows.write(json.dumps(row) + "\n")
    lines = shown(run_dir, width=200)
    (use,) = (line for line in lines if line.startswith("use"))
    assert (
        "cpu 20 %, 3 % of what it could use: others have 1.9 cores, the container's own CPU limit holds it back" in use
    )
    assert "machine  load 4.1 · processes wait for a core 47 %, a disk 12 %" in lines
    held_back_little = {**row, "share_pct": 100, "held_pct": 5, "load": None, "waits_cpu_pct": None, "waits_io_pct": 0}
    with open(run_dir / RESOURCES_FILE, "a") as rows:
        rows.write(json.dumps(held_back_little) + "\n")
    lines = shown(run_dir, width=200)
    assert not any("limit" in line or line.startswith("machine") for line in lines)


def test_the_view_tells_what_a_person_asks(run_dir: Path) -> None:
    text = "\n".join(shown(run_dir, width=200))
    assert text.splitlines()[0] == "run smoke-1 · local · profile learn · 1 h 00 min"
    assert re.search(r"train +RUNNING +1 h 00 min +1/5 held +vllm:ready", text)
    assert "phase    rollout" in text
    assert "waits    require saved · require step (2 so far) · exit code 0" in text
    assert "step 7 of 200" in text
    assert "104.5 tokens/s out" in text
    assert "2 s a step" in text
    assert "6 min 26 s left" in text
    assert "metrics  loss 0.25 · mean_reward 0.5" in text
    assert "cpu 150 % · memory 3.2 GB · read 5.0 MB/s" in text
    assert "gpu      0: 97 % 312 W 37.3 GiB" in text
    assert "disk     600.0 MB left, full in 6 min 00 s at the present rate" in text
    assert "log      stage: step 7 loss 0.25 red" in text


def test_many_gpus_are_told_together(run_dir: Path) -> None:
    facts = read_run_snapshot(run_dir, STATE)
    assert facts.sample
    [gpu] = facts.sample.gpus
    gpus = tuple(dataclasses.replace(gpu, index=n, utilization=90 + n) for n in range(8))
    facts = dataclasses.replace(facts, sample=dataclasses.replace(facts.sample, gpus=gpus))
    lines = [line.plain for line in render_run_frame(facts, NOW, width=79, height=23)]
    assert "gpu      8: 90 to 97 % · 2496 W · 298.0 GiB in all" in lines


@pytest.mark.parametrize(("width", "height"), [(79, 23), (39, 9), (19, 5), (1, 1), (300, 80)])
def test_it_fits_any_terminal(run_dir: Path, width: int, height: int) -> None:
    many = run(*(stage(f"before-{n}", "passed", started_at=BEGAN) for n in range(30)), TRAINING, *map(stage, "abcdef"))
    for state in (STATE, many):
        lines = shown(run_dir, width, height, state)
        assert 0 < len(lines) <= height
        assert max(map(len, lines)) <= width
    if width >= 79:
        assert any(line.startswith("  train") for line in lines)


def test_a_broken_rule_is_named_first(tmp_path: Path) -> None:
    gate = (*TRAINING.gate, RuleState(kind="forbid", rule="OOM", state="broken", seen="CUDA OOM"))
    state = run(dataclasses.replace(TRAINING, gate=gate))
    assert any(line.startswith("waits    forbid OOM BROKEN · require saved") for line in shown(tmp_path, state=state))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (0.44, "0.4 s"), (8.0, "8 s"), (9.96, "10 s"), (59.9, "59 s"), (185, "3 min 05 s"),
     (7620, "2 h 07 min"), (3 * 86400 + 4 * 3600, "3 d 04 h")],
)  # fmt: skip
def test_spans(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm-256color")
    return Terminal()


def test_no_colour_when_it_is_not_wanted(terminal: Terminal, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, coloured in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", variable) if variable else monkeypatch.delenv("NO_COLOR", raising=False)
        with _LiveView(run_dir, Console(file=terminal)) as view:
            view.show(STATE)
        assert bool(re.search(r"\x1b\[(?:\d;)*3\dm", terminal.getvalue())) == coloured
        terminal.truncate(0)


def test_off_a_terminal_there_is_a_line_for_every_change(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with open_run_view(tmp_path, live=False, quiet=False) as show:
        show(STATE)
        show(STATE)
    err = capsys.readouterr().err
    assert re.sub(r"\d\d:\d\d:\d\d", "T", err).splitlines() == [
        "T data: passed",
        "T train: running",
        "T train: service vllm: ready",
    ]


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_move_gets_lines(
    term: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TERM", term) if term else monkeypatch.delenv("TERM", raising=False)
    with open_run_view(tmp_path, live=True, quiet=False) as show:
        show(STATE)
    assert "\x1b" not in capsys.readouterr().err


FOLLOW = """
import sys, time
from pathlib import Path
from rlbox.record.state import load_run_state
from rlbox.report.run_view import open_run_view
folder = Path(sys.argv[1])
with open_run_view(folder, live=sys.stderr.isatty(), quiet=False) as show:
    while not (folder / "end").exists():
        show(load_run_state(folder))
        time.sleep(0.05)
"""


def test_a_real_terminal(run_dir: Path) -> None:
    write_run_state(run_dir, STATE, SecretMasker({}))
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {"PATH": os.defpath, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path), "LANG": "C.UTF-8"}
    follower = subprocess.Popen(
        [sys.executable, "-c", FOLLOW, str(run_dir)], stdin=theirs, stdout=theirs, stderr=theirs, env=env
    )
    received = ""
    try:
        received += _read_until(ours, "held")
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 40, 0, 0))
        write_run_state(run_dir, dataclasses.replace(STATE, target="moved"), SecretMasker({}))
        received += _read_until(ours, "moved")
        (run_dir / "end").touch()
        assert follower.wait(60) == 0
        received += _read_until(ours, "\x1b[?25h")
    finally:
        follower.kill()
        follower.wait()
        os.close(theirs)
        os.close(ours)
    assert "\x1b[?1049h" not in received  # the user's screen and what scrolled off it stay
    assert "\x1b[2J" not in received
    assert received.endswith("\x1b[1A\x1b[2K")  # nothing is left of it


def _read_until(terminal: int, text: str) -> str:
    until, found = time.monotonic() + 60, ""
    while text not in found:
        assert time.monotonic() < until, found
        found += os.read(terminal, 65536).decode("utf-8", "replace")
    return found
