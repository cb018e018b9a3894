"""The limits of a container, as both versions of control groups tell them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlbox.system.limits import CgroupCpu, CgroupMemory, probe_cgroup_memory, read_cgroup_cpu_limit

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
        ({}, SECOND, CgroupCpu(cores=1.5, throttled_s=2.5)),
        ({}, FIRST, CgroupCpu(cores=0.2, throttled_s=2.5)),
        (
            SECOND,
            {"cpu.stat": "usage_usec 9\n"},
            CgroupCpu(cores=1.5, throttled_s=2.5),
        ),  # no controllers below
        (SECOND, {"cpu.max": "max 100000"}, CgroupCpu(cores=1.5, throttled_s=2.5)),
        ({}, {**FIRST, "cpu.cfs_quota_us": "-1"}, None),
        ({}, {"cpu.max": "max 100000", "cpu.stat": "usage_usec 9\n"}, None),
        ({}, {"cpu.max": "torn"}, None),
        ({}, {"cpu.max": "50000 100000"}, CgroupCpu(cores=0.5)),
    ],
)
def test_the_nearest_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: dict[str, str], own: dict[str, str], limit: CgroupCpu | None
) -> None:
    group = tmp_path / "box/run"
    group.mkdir(parents=True)
    for folder, files in ((group.parent, above), (group, own)):
        for name, text in {"cgroup.procs": "", **files}.items():
            (folder / name).write_text(text)
    monkeypatch.setattr("rlbox.system.limits.find_own_cgroups", lambda kinds: iter([("", group)]))
    monkeypatch.setattr("rlbox.system.limits._ROOT", tmp_path / "none")
    assert read_cgroup_cpu_limit() == limit


@pytest.mark.parametrize(
    ("files", "facts"),
    [
        (
            {
                "memory.events": "low 0\noom 2\noom_kill 1\n",
                "memory.max": "max\n",
                "memory.current": "5\n",
                "memory.stat": "anon 1\nactive_file 2\ninactive_file 1\n",
            },
            CgroupMemory(kills=1, limit_bytes=None, used_bytes=5, cache_bytes=3),
        ),
        (
            {
                "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
                "memory/memory.limit_in_bytes": "4294967296\n",
                "memory/memory.usage_in_bytes": "7\n",
            },
            CgroupMemory(kills=3, limit_bytes=4 << 30, used_bytes=7),
        ),
        ({}, CgroupMemory()),
    ],
)
def test_memory_of_either_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], facts: CgroupMemory
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("rlbox.system.limits.find_own_cgroups", lambda kinds: iter(()))
    monkeypatch.setattr("rlbox.system.limits._ROOT", tmp_path)
    assert probe_cgroup_memory() == facts
