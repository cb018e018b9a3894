"""What the container allows: cores, memory and processes, by either version of control groups.

Sources: Linux cgroups(7), Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst, scheduler/sched-bwc.rst.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rlbox.foreign import parse_digits
from rlbox.system.process_table import read_text_or_empty

PROCS_FILE = "cgroup.procs"
_ROOT = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
"""Version 1 writes a number near 2**63 where there is no limit."""


class OwnCgroup(NamedTuple):
    """A control group that this process is in; the controller is empty for version 2."""

    controller: str
    directory: Path


def find_own_cgroups(controllers_empty_name_means_v2: Iterable[str]) -> Iterator[OwnCgroup]:
    paths: dict[str, str] = {}
    for line in read_text_or_empty("/proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        paths |= dict.fromkeys(names.split(","), path)
    mounts = [_parse_mount(line) for line in read_text_or_empty("/proc/self/mountinfo").splitlines()]
    for controller in controllers_empty_name_means_v2:
        own = paths.get(controller)
        for mount in mounts:
            if own is not None and controller in mount.controllers:
                below = own.removeprefix(mount.root.rstrip("/")) if own.startswith(mount.root) else own
                if (directory := mount.mount_point / below.strip("/")).is_dir():
                    yield OwnCgroup(controller, directory)


class _Mount(NamedTuple):
    controllers: tuple[str, ...]
    root: str
    mount_point: Path


def _parse_mount(line: str) -> _Mount:
    """Return what a line of mountinfo says; a file system of another kind has no controllers."""
    mount, _, filesystem = line.partition(" - ")
    kind, _, options = filesystem.partition(" ")
    root, mount_point = mount.split(" ")[3:5]
    controllers = {"cgroup2": ("",), "cgroup": tuple(options.rpartition(" ")[2].split(","))}.get(kind, ())
    return _Mount(controllers, root, Path(mount_point))


@dataclass(frozen=True, kw_only=True)
class CgroupCpu:
    """The container's limit of cores; `throttled_s` is how long it kept ready processes waiting, summed over cores."""

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
    if not (events := _read_cgroup_file("memory", "events", "oom_control")):
        return CgroupMemory()
    stat = parse_name_number_lines(_read_cgroup_file("memory", "stat", "stat"))
    # Version 1 counts what is in groups below this one under `total_`.
    cache = sum(stat.get(f"total_{name}", stat.get(name, 0)) for name in ("active_file", "inactive_file"))
    return CgroupMemory(
        kills=parse_name_number_lines(events).get("oom_kill", 0),
        limit_bytes=read_cgroup_number_unless_unlimited("memory", "max", "limit_in_bytes"),
        used_bytes=read_cgroup_number_unless_unlimited("memory", "current", "usage_in_bytes"),
        cache_bytes=cache,
    )


def get_available_memory_bytes() -> int:
    """Return the bytes that a new process can get; pages of files count, since the kernel drops them when needed."""
    machine, memory = _read_meminfo("MemAvailable"), probe_cgroup_memory()
    if memory.limit_bytes is None or memory.used_bytes is None:
        return machine
    return max(min(machine, memory.limit_bytes - memory.used_bytes + memory.cache_bytes), 0)


def get_machine_total_memory_bytes() -> int:
    return _read_meminfo("MemTotal")


def _read_meminfo(name: str) -> int:
    values = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text("ascii").splitlines())
    return int(values[name].split()[0]) * 1024


def count_usable_cores() -> float:
    cores, limit = len(os.sched_getaffinity(0)), read_cgroup_cpu_limit()
    return min(cores, limit.cores) if limit else cores


def read_cgroup_cpu_limit() -> CgroupCpu | None:
    for directory in _visible_groups("cpu"):
        words = read_text_or_empty(directory / "cpu.max").split()  # version 2 has both numbers in one file
        words = words or [read_text_or_empty(directory / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
        quota, period = (parse_digits(word) for word in words) if len(words) == 2 else (None, None)
        if quota is not None and period:
            stat = parse_name_number_lines(read_text_or_empty(directory / "cpu.stat"))
            throttled_s = stat.get("throttled_usec", 0) / 1e6 + stat.get("throttled_time", 0) / 1e9
            return CgroupCpu(cores=quota / period, throttled_s=throttled_s)
    return None


def read_cgroup_number_unless_unlimited(controller: str, v2_name: str, v1_name: str) -> int | None:
    """Return a number of this process' control group; None for no limit, or where the kernel does not tell."""
    number = parse_digits(_read_cgroup_file(controller, v2_name, v1_name).strip(), max_digits=20)
    return number if number is not None and number < _UNLIMITED else None


def _read_cgroup_file(controller: str, v2_name: str, v1_name: str) -> str:
    for directory in _visible_groups(controller):
        for name in (v2_name, v1_name):
            if text := read_text_or_empty(directory / f"{controller}.{name}"):
                return text
    return ""


def _visible_groups(controller: str) -> Iterator[Path]:
    # Inside a container the path in /proc is at times that of the host, and the container's own files are at the root.
    for _, directory in find_own_cgroups((controller, "")):
        while (directory / PROCS_FILE).exists():
            yield directory
            directory = directory.parent
    yield from (_ROOT / controller, _ROOT)


def parse_name_number_lines(text: str) -> dict[str, int]:
    rows = (line.split() for line in text.splitlines())
    return {
        row[0]: count for row in rows if len(row) == 2 and (count := parse_digits(row[1], max_digits=20)) is not None
    }
