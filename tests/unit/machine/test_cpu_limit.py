"""The limit of a container's cores, as both versions of control groups tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlbox.machine.act.cgroup import CpuLimitFile
from rlbox.machine.counters import CpuLimit

SECOND = {
    "cpu.max": "150000 100000",
    "cpu.stat": "usage_usec 9\nnr_periods 5\nnr_throttled 2\nthrottled_usec 2500000\n",
}
FIRST = {
    "cpu.cfs_quota_us": "20000",
    "cpu.cfs_period_us": "100000",
    "cpu.stat": "nr_periods 5\nnr_throttled 5\nthrottled_time 2500000000\n",
}


@pytest.mark.parametrize(
    ("above", "own", "limit"),
    [
        ({}, SECOND, CpuLimit(cores=1.5, throttled_s=2.5)),
        ({}, FIRST, CpuLimit(cores=0.2, throttled_s=2.5)),
        (SECOND, {"cpu.stat": "usage_usec 9\n"}, CpuLimit(cores=1.5, throttled_s=2.5)),  # a run's own group below it
        (SECOND, {"cpu.max": "max 100000"}, CpuLimit(cores=1.5, throttled_s=2.5)),
        ({}, {**FIRST, "cpu.cfs_quota_us": "-1"}, None),
        ({}, {"cpu.max": "max 100000", "cpu.stat": "usage_usec 9\n"}, None),
        ({}, {"cpu.max": "torn"}, None),
        ({}, {"cpu.max": "50000 100000"}, CpuLimit(cores=0.5)),
    ],
)
def test_the_nearest_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: dict[str, str], own: dict[str, str], limit: CpuLimit | None
) -> None:
    group = tmp_path / "box/run"
    group.mkdir(parents=True)
    for folder, files in ((group.parent, above), (group, own)):
        for name, text in {"cgroup.procs": "", **files}.items():
            (folder / name).write_text(text)
    monkeypatch.setattr("rlbox.machine.act.cgroup.own_groups", lambda kinds: iter([("", group)]))
    monkeypatch.setattr("rlbox.machine.act.cgroup._ROOT", tmp_path / "none")
    assert CpuLimitFile().read() == limit
