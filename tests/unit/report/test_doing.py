"""What a stage is busy with besides its steps, and how far it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlbox.logs.progress import ProgressBar
from rlbox.record.resources import RESOURCES_FILE, ProcessGroupSample, ResourceSample
from rlbox.record.state import RunState, ServiceState, StageState
from rlbox.report.run_view import StageActivity, _Lines, find_stage_activity, format_activity

BEGAN, NOW = "2027-01-15T08:00:00.000+00:00", 1_800_000_030.0


def starting(state: str = "starting") -> StageState:
    vllm = ServiceState(name="vllm", title="", state=state, started_at=BEGAN)  # type: ignore[arg-type]
    return StageState(name="rollout", title="", directory="stages/2-rollout", state="starting", services=(vllm,))


def row(second: int, read: int, cpu: float = 90.0) -> ResourceSample:
    part = ProcessGroupSample(cpu_pct=cpu, resident_bytes=10**9, read_bytes=read)
    return ResourceSample(t=f"2027-01-15T08:00:{second:02d}.000+00:00", stage="rollout", parts={"vllm": part})


def text(
    stage: StageState, samples: list[ResourceSample], bars: dict[str, ProgressBar | None], *, bar: bool = False
) -> str:
    found = find_stage_activity(stage, samples, bars)
    assert found
    return format_activity(found, NOW, show_bar=bar)


def test_a_start_without_a_bar_tells_what_was_read() -> None:
    assert text(starting(), [row(10, 10**9)], {}) == "vllm starts, 30 s · 1.0 GB read · 0.9 cores"
    assert text(starting(), [row(10, 10**9), row(20, 2 * 10**9, cpu=2)], {}) == "vllm starts, 30 s · 2.0 GB read"


def test_what_the_log_says_comes_first() -> None:
    bars = {"vllm": ProgressBar(label="Loading safetensors checkpoint shards", done=1, total=4, left_s=15)}
    told = text(starting(), [row(10, 10**9)], bars, bar=True)
    assert told == (
        "vllm starts, 30 s · ████░░░░░░░░░░░░ 25 % · 15 s left · 1.0 GB read · 0.9 cores · "
        "Loading safetensors checkpoint shards"
    )


def test_nothing_is_known_yet() -> None:
    assert text(starting(), [], {}) == "vllm starts, 30 s"
    assert find_stage_activity(starting(state="ready"), [], {"vllm": ProgressBar(label="x", done=1, total=2)}) is None


def test_a_bar_of_the_stage() -> None:
    bar = ProgressBar(label="Evaluating step 40", done=41, total=164, left_s=75)
    found = find_stage_activity(starting(state="ready"), [], {"stage": bar})
    assert found == StageActivity(share=0.25, remaining_s=75, label="Evaluating step 40")
    assert format_activity(found, NOW, show_bar=False) == "25 % · 1 min 15 s left · Evaluating step 40"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "stages/2-rollout").mkdir(parents=True)
    (tmp_path / "stages/2-rollout/vllm.log").write_text("INFO Starting to load model /m\n")
    part = {"cpu_pct": 90, "resident_bytes": 1, "read_bytes": 1_200_000_000}
    (tmp_path / RESOURCES_FILE).write_text(json.dumps({"t": BEGAN, "stage": "rollout", "parts": {"vllm": part}}) + "\n")
    return tmp_path


def run(stage: StageState) -> RunState:
    return RunState(
        run_id="r", job="j", target="t", place="here", profile="", supervisor_pid=1, started_at=BEGAN, stages=(stage,)
    )


def test_off_a_terminal_a_start_is_told_of_now_and_then(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    lines = _Lines(run_dir, lambda: now)
    state = run(starting())
    told = []
    for now in (0.0, 19.0, 21.0, 40.0, 42.0):  # noqa: B007 - the clock that the lines look at
        lines.show(state)
        told.append(len(capsys.readouterr().err.splitlines()))
    assert told == [2, 0, 1, 0, 1]


def test_the_line_quotes_the_log_as_it_is(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    lines = _Lines(run_dir, lambda: now)
    lines.show(run(starting()))
    capsys.readouterr()
    now = 30.0
    lines.show(run(starting()))
    told = capsys.readouterr().err
    assert "rollout: vllm starts, " in told
    assert "1.2 GB read · 0.9 cores" in told
    assert told.endswith("| vllm: INFO Starting to load model /m\n")


def test_steps_are_told_each_minute(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    stage = StageState(name="train", title="", directory="stages/2-rollout", state="running", started_at=BEGAN)
    (run_dir / "stages/2-rollout/stage.log").write_text(" 25%|##  | 50/200 [10:00<05:00, 2.0s/it]\n")
    lines = _Lines(run_dir, lambda: now)
    lines.show(run(stage))
    capsys.readouterr()
    for now in (30.0, 59.0):  # noqa: B007
        lines.show(run(stage))
    assert capsys.readouterr().err == ""
    now = 61.0
    lines.show(run(stage))
    assert "train: step 50 of 200 · 2 s a step · 5 min 00 s left" in capsys.readouterr().err
