"""How many cores, how much memory and how many processes the container allows, by either version of control groups.

Sources: Linux Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst, scheduler/sched-bwc.rst.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlbox.foreign import whole_number
from rlbox.system.cgroup import PROCS_FILE, find_own_cgroups
from rlbox.system.process_table import read_text

_ROOT = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
"""Version 1 writes a number near 2**63 where there is no limit."""


@dataclass(frozen=True, kw_only=True)
class CpuLimit:
    """The limit of the container's own: so many `cores`; `throttled_s` is how long it kept cores from who was ready.

    Each core counts by itself, so that `throttled_s` may grow by more than a second in one.
    """

    cores: float
    throttled_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CgroupMemory:
    """`kills`: how often the kernel ended a process for memory in this group; `limit_bytes` None: no limit.

    `cache_bytes` are those of `used_bytes` that hold pages of files.
    """

    kills: int = 0
    limit_bytes: int | None = None
    used_bytes: int | None = None
    cache_bytes: int = 0


def probe_cgroup_memory() -> CgroupMemory:
    """Return the memory of this process' control group; zeros and None where the kernel does not tell."""
    if not (events := _read_cgroup_file("memory", "events", "oom_control")):
        return CgroupMemory()
    stat = _parse_table(_read_cgroup_file("memory", "stat", "stat"))
    # Version 1 counts what is in groups below this one under `total_`.
    cache = sum(stat.get(f"total_{name}", stat.get(name, 0)) for name in ("active_file", "inactive_file"))
    return CgroupMemory(
        kills=_parse_table(events).get("oom_kill", 0),
        limit_bytes=read_cgroup_number("memory", "max", "limit_in_bytes"),
        used_bytes=read_cgroup_number("memory", "current", "usage_in_bytes"),
        cache_bytes=cache,
    )


def get_available_memory() -> int:
    """Return how many bytes a new process can get: of the machine, and within the container's limit.

    Pages of files count as available, since the kernel drops them when memory is needed.
    """
    machine, memory = _read_meminfo("MemAvailable"), probe_cgroup_memory()
    if memory.limit_bytes is None or memory.used_bytes is None:
        return machine
    return max(min(machine, memory.limit_bytes - memory.used_bytes + memory.cache_bytes), 0)


def get_machine_memory_bytes() -> int:
    return _read_meminfo("MemTotal")


def _read_meminfo(name: str) -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        values = dict(line.split(":", 1) for line in file)
    return int(values[name].split()[0]) * 1024


def count_usable_cores() -> float:
    """Return how many cores this process, and what it starts, can use at once."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, _read_cpu_quota() or cores)


def _read_cpu_quota() -> float | None:
    limit = CpuLimitReader().read_if_limited()
    return limit.cores if limit else None


class CpuLimitReader:
    """The nearest limit of cores above this process, found once and read any number of times."""

    def __init__(self) -> None:
        self._stat: Path | None = None
        self._cores = 0.0
        for directory in _visible_groups("cpu"):
            if (cores := _read_cores(directory)) is not None:
                self._stat, self._cores = directory / "cpu.stat", cores
                return

    def read_if_limited(self) -> CpuLimit | None:
        """Return the limit and how long it kept ready processes waiting, a sum over all cores; None without a limit."""
        if self._stat is None:
            return None
        stat = _parse_table(read_text(self._stat))
        throttled_s = stat.get("throttled_usec", 0) / 1e6 + stat.get("throttled_time", 0) / 1e9
        return CpuLimit(cores=self._cores, throttled_s=throttled_s)


def _read_cores(directory: Path) -> float | None:
    words = read_text(directory / "cpu.max").split()  # version 2 has both numbers in one file
    words = words or [read_text(directory / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    quota, period = (whole_number(word) for word in words) if len(words) == 2 else (None, None)
    return quota / period if quota is not None and period else None


def read_cgroup_number(controller: str, v2_name: str, v1_name: str) -> int | None:
    """Return a number of this process' control group; None for no limit, or where the kernel does not tell."""
    number = whole_number(_read_cgroup_file(controller, v2_name, v1_name).strip(), digits=20)
    return number if number is not None and number < _UNLIMITED else None


def _read_cgroup_file(controller: str, v2_name: str, v1_name: str) -> str:
    """Return the file `CONTROLLER.NAME` of the nearest control group that has it; empty where there is none.

    A group that a run made for itself has no controllers, so that the container's own group above it answers.
    """
    for directory in _visible_groups(controller):
        for name in (v2_name, v1_name):
            if text := read_text(directory / f"{controller}.{name}"):
                return text
    return ""


def _visible_groups(controller: str) -> Iterator[Path]:
    """Yield the group of this process and those above it as far as they are visible, then the roots.

    Inside a container the path in /proc is at times that of the host, and the container's own files are at the root.
    """
    for _, directory in find_own_cgroups((controller, "")):
        while (directory / PROCS_FILE).exists():
            yield directory
            directory = directory.parent
    yield from (_ROOT / controller, _ROOT)


def _parse_table(text: str) -> dict[str, int]:
    rows = (line.split() for line in text.splitlines())
    return {row[0]: number for row in rows if len(row) == 2 and (number := whole_number(row[1], digits=20)) is not None}
