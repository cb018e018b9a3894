"""Series for plots: thinned without losing a spike, read from logs of any size."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fakes import CHECKOUT

from rlbox.config.toml_files import load_toml
from rlbox.logs import progress as log_metrics
from rlbox.logs.progress import read_log_progress
from rlbox.record.resources import GpuSample, ProcessGroupSample, ResourceSample
from rlbox.report.plots import draw_resource_plots, thin_points_to_extremes


def sample(number: int) -> ResourceSample:
    return ResourceSample(
        t=str(number), stage="a", phase="", cpu_pct=number, resident_bytes=number, read_bps=0, write_bps=0,
        received_bps=0, sent_bps=0, disk_free_bytes=1000 - number,
        gpus=(GpuSample(index=0, utilization=number, power_w=1, memory_bytes=number),),
        parts={"main": ProcessGroupSample(cpu_pct=10, resident_bytes=number)} if number % 2 else {},
    )  # fmt: skip


def test_thinning_keeps_what_stands_out() -> None:
    points = [(float(x), 0.0) for x in range(10_000)]
    points[1234], points[5678] = (1234.0, 9.0), (5678.0, -9.0)
    thin = thin_points_to_extremes(points, 100)
    assert len(thin) <= 100
    assert {(1234.0, 9.0), (5678.0, -9.0)} <= set(thin)
    assert list(thin) == sorted(thin)
    assert thin_points_to_extremes(points[:50], 100) == tuple(points[:50])


def test_what_others_had_is_drawn() -> None:
    words = load_toml(CHECKOUT / "rlbox/report/page/words.toml")
    at = [dataclasses.replace(sample(n), t=f"2026-01-01T00:00:0{n}+00:00", others_pct=190.0) for n in range(3)]
    plots = {plot.title: [line.name for line in plot.lines] for plot in draw_resource_plots(at, words)}
    assert plots[words["cpu"]][:2] == [words["all_parts"], words["others"]]


def test_lines_of_a_log_have_their_times(tmp_path: Path) -> None:
    log = tmp_path / "stage.log"
    log.write_bytes(b"hello\nstep 1 loss 0.5\nstep 2 loss 0.4\n")
    (tmp_path / "stage.log.times").write_bytes(b"0 1000\n6 2000\ntorn\n22 4500\n5 9\n")
    assert [(at, found.step) for at, found in read_log_progress(log)] == [(2.0, 1), (4.5, 2)]
    (tmp_path / "stage.log.times").unlink()
    assert [at for at, _ in read_log_progress(log)] == [None, None]
    assert list(read_log_progress(tmp_path / "missing.log")) == []


def test_a_log_that_is_too_long_is_read_in_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "stage.log"
    log.write_bytes(b"".join(b"step %d loss 0.5\n" % n for n in range(100_000)))
    monkeypatch.setattr(log_metrics, "_BLOCK", 2000)
    steps = [found.step for _, found in read_log_progress(log)]
    assert len(steps) < 10_000
    assert steps[0] == 0
    assert steps[-1] == 99_999
