"""What a run used: samples from two looks, their rows, and when a disk will be full."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from rlbox.record.resources import create_resource_sample, estimate_seconds_until_disk_full, parse_sample
from rlbox.system.counters import ActivitySample, Pressure, ProcessUsage, probe_pressure
from rlbox.system.gpu import GpuStatus

CALM = Pressure()
GPU = GpuStatus(
    index=0, name="A800", utilization=97, power_w=312.5, power_limit_w=400, memory_bytes=7, total_bytes=80, processes=()
)


def process(pid: int, cpu_s: float, *, read: int = 0) -> ProcessUsage:
    return ProcessUsage(
        pid=pid, start_ticks=pid, name="p", state="R", cpu_s=cpu_s, resident_bytes=100 * pid, minor_faults=0,
        major_faults=0, read_chars=read,
    )  # fmt: skip


def look(t_s: float, *processes: ProcessUsage, received: int = 0) -> ActivitySample:
    return ActivitySample(
        time_s=t_s, received_bytes=received, sent_bytes=0, loopback_bytes=0, gpus=(GPU,), processes=processes
    )


def test_a_sample_is_what_happened_between_two_looks() -> None:
    before = look(10, process(1, 5.0), process(2, 1.0), received=1000)
    after = look(15, process(1, 7.5, read=500), process(3, 1.0), received=6000)  # 2 ended, 3 began
    sample = create_resource_sample(
        before, after, part_pids={"main": {1}, "vllm": {3}}, timestamp="2026-01-01T00:00:00+00:00", stage="train",
        phase="load", disk_free_bytes=9, cores=8, pressure=CALM,
    )  # fmt: skip
    assert (sample.cpu_pct, sample.resident_bytes) == (70.0, 400)
    assert (sample.read_bps, sample.received_bps) == (100.0, 1000.0)
    assert (sample.parts["main"].cpu_pct, sample.parts["vllm"].cpu_pct) == (50.0, 20.0)
    assert sample.parts["vllm"].resident_bytes == 300
    assert sample.gpus[0].utilization == 97
    assert parse_sample(json.loads(json.dumps(sample.to_json()))) == sample


def test_what_others_left_of_the_machine() -> None:
    before, after = (
        look(10, process(1, 5.0)),
        look(20, dataclasses.replace(process(1, 6.0), main_thread_run_delay_s=9.0)),
    )
    sample = create_resource_sample(
        before, dataclasses.replace(after, machine_busy_s=20.0), part_pids={}, timestamp="t", stage="", phase="",
        disk_free_bytes=9, cores=2, pressure=CALM,
    )  # fmt: skip
    assert (sample.cpu_pct, sample.others_pct, sample.share_pct) == (10.0, 190.0, 10.0)


def test_the_first_sample_has_no_rates() -> None:
    sample = create_resource_sample(
        None,
        look(10, process(1, 5.0, read=7), received=99),
        part_pids={},
        timestamp="t",
        stage="",
        phase="",
        disk_free_bytes=9,
        cores=8,
        pressure=CALM,
    )
    assert (sample.cpu_pct, sample.read_bps, sample.received_bps, sample.resident_bytes) == (0, 0, 0, 100)


@pytest.mark.parametrize("row", [None, [], {}, {"t": 3}, {"t": "x", "gpus": [1]}, {"t": "x", "cpu_pct": "many"}])
def test_a_torn_row_is_none(row: object) -> None:
    assert parse_sample(row) is None


def test_a_row_of_another_version_is_read_as_far_as_it_goes() -> None:
    none = create_resource_sample(
        None, look(0), part_pids={}, timestamp="x", stage="", phase="", disk_free_bytes=0, cores=8, pressure=CALM
    )
    assert parse_sample({"t": "x", "cpu_pct": 3, "new": 1}) == dataclasses.replace(none, cpu_pct=3, gpus=())


def test_the_pressure_of_the_machine(tmp_path: Path) -> None:
    """As the kernel writes it; one that lacks PSI, or a file of it, leaves the others."""
    (tmp_path / "pressure").mkdir()
    (tmp_path / "loadavg").write_text("12.34 3.21 1.00 5/789 12345\n")
    for name, value in (("cpu", "31.50"), ("io", "0.07")):
        text = f"some avg10={value} avg60=1.00 avg300=0.10 total=99\nfull avg10=7.77 avg60=0.00 avg300=0.00 total=1\n"
        (tmp_path / "pressure" / name).write_text(text)
    found = probe_pressure(tmp_path)
    assert found == Pressure(load_average=12.34, cpu_some_avg10_pct=31.5, io_some_avg10_pct=0.07)
    sample = create_resource_sample(
        None, look(0), part_pids={}, timestamp="x", stage="", phase="", disk_free_bytes=0, cores=8, pressure=found
    )
    assert (sample.load, sample.waits_cpu_pct, sample.waits_io_pct, sample.waits_memory_pct) == (
        12.34,
        31.5,
        0.07,
        None,
    )
    assert parse_sample(json.loads(json.dumps(sample.to_json()))) == sample
    assert probe_pressure(tmp_path / "none") == Pressure()


def test_when_the_disk_will_be_full() -> None:
    assert estimate_seconds_until_disk_full([(0, 1000), (50, 900), (100, 800)]) == 400
    assert estimate_seconds_until_disk_full([(0, 1000), (100, 1000)]) is None
    assert estimate_seconds_until_disk_full([(0, 1000), (100, 2000)]) is None
    assert estimate_seconds_until_disk_full([(0, 1000)]) is None
    assert estimate_seconds_until_disk_full([(0, 10**15), (100, 10**15 - 1)]) is None
