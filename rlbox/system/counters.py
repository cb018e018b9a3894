"""What processes did between two moments, worked out from the kernel's counters."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rlbox.system.cgroup import find_own_cgroups
from rlbox.system.gpu import GpuStatus, probe_gpus
from rlbox.system.limits import CpuLimit, CpuLimitReader
from rlbox.system.process_table import ProcessKey, read_stat_fields_or_empty, read_text

BytesPerSecond = float
Percent = int
_NO_TIME_S = 1e-3
_PAGE_BYTES = 4096
"""The least that a page which had to be waited for has read."""
WAITS_CORES = 0.25
"""Who wants less of a core than this waits for something else: what stands beside a hung training wakes at times."""


@dataclass(frozen=True, kw_only=True)
class ProcessUsage:
    """Counters of one process since it started; `started` (clock ticks) tells it from a later one with its id.

    `read_bytes` and `write_bytes` passed a disk or a network file system, `read_chars` and `write_chars` passed a read
    or write call (page cache, pipes and sockets included). Zero where the kernel does not let us look.
    `main_thread_run_delay_s` is how long its first thread was ready to go on and had no core.
    """

    pid: int
    started: int
    name: str
    state: str
    cpu_s: float
    resident_bytes: int
    minor_faults: int
    major_faults: int
    read_bytes: int = 0
    write_bytes: int = 0
    read_chars: int = 0
    write_chars: int = 0
    main_thread_run_delay_s: float = 0.0

    @property
    def waits_for_disk(self) -> bool:
        """Whether it sleeps in the kernel and nothing may wake it but what it waits for, a disk as a rule."""
        return self.state == "D"

    @property
    def key(self) -> ProcessKey:
        return ProcessKey(self.pid, self.started)


@dataclass(frozen=True, kw_only=True)
class ActivitySample:
    """Counters of the living processes of a run at `time_s` (a clock that only goes forward).

    `received_bytes` and `sent_bytes` are those of all interfaces but loopback; `loopback_bytes` is loopback's.
    `machine_busy_s` is the time that all cores of the machine were at work, whoever for. `cpu_limit` is None without
    one. `disk_wait_s` is how long some process of the machine, or of this container, waited for a disk; None where the
    kernel does not tell.
    """

    time_s: float
    received_bytes: int
    sent_bytes: int
    loopback_bytes: int
    gpus: tuple[GpuStatus, ...]
    processes: tuple[ProcessUsage, ...]
    machine_busy_s: float = 0.0
    cpu_limit: CpuLimit | None = None
    disk_wait_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Pressure:
    """How many wait for the machine. `load_average`: processes that run or wait for a core or a disk, over the last
    minute; the others percent of the last ten seconds in which some process waited for it. `None`: the kernel does not
    tell. Source: proc(5), PSI.
    """

    load_average: float | None = None
    cpu_pct: float | None = None
    io_pct: float | None = None
    memory_pct: float | None = None


@dataclass(frozen=True, kw_only=True)
class ActivityRates:
    """What happened between two looks, per second (bytes; `cpu` in cores; `faults` a number).

    `memory` is how fast the processes' memory changed, either way. `gpu` is the highest utilization and `gpu_power`
    the highest share of a power limit (0-1) at the second look, `gpu_memory` the highest `memory_utilization`, of the
    GPUs that these processes use; of all where the driver knows none of them (in a container it tells other ids).
    """

    seconds: float
    read: BytesPerSecond = 0.0
    write: BytesPerSecond = 0.0
    network: BytesPerSecond = 0.0
    local: float = 0.0
    memory: float = 0.0
    faults: float = 0.0
    cpu: float = 0.0
    gpu: Percent = 0
    gpu_power: float = 0.0
    gpu_memory: Percent = 0


def compute_rates(earlier: ActivitySample, later: ActivitySample) -> ActivityRates:
    """Return what happened between two looks.

    Processes are compared one by one: a new one counts from zero, one that is gone does not make a sum fall. `read`
    and `write` are the larger of what passed disks and what passed calls, so that mapped files count too; where a file
    system counts neither (FUSE), what was mapped counts by the pages that were waited for.
    """
    seconds = max(later.time_s - earlier.time_s, _NO_TIME_S)
    before = {process.key: process for process in earlier.processes}
    pairs = [(before.get(process.key), process) for process in later.processes]

    def grown(field: str) -> float:
        gains = (float(getattr(now, field) - (getattr(was, field) if was else 0)) for was, now in pairs)
        return sum(max(0.0, gain) for gain in gains) / seconds

    gpus = select_used_gpus_or_all(later.gpus, {process.pid for process in later.processes})
    moved = sum(abs(now.resident_bytes - (was.resident_bytes if was else 0)) for was, now in pairs)
    return ActivityRates(
        seconds=seconds,
        read=max(grown("read_bytes"), grown("read_chars"), _PAGE_BYTES * grown("major_faults")),
        write=max(grown("write_bytes"), grown("write_chars")),
        network=_grown(earlier, later, "received_bytes", "sent_bytes") / seconds,
        local=_grown(earlier, later, "loopback_bytes") / seconds,
        memory=moved / seconds,
        faults=grown("minor_faults") + grown("major_faults"),
        cpu=grown("cpu_s"),
        gpu=max((gpu.utilization for gpu in gpus), default=0),
        gpu_power=max((gpu.power_ratio for gpu in gpus), default=0.0),
        gpu_memory=max((gpu.memory_utilization for gpu in gpus), default=0),
    )


def select_used_gpus_or_all(gpus: Iterable[GpuStatus], pids: set[int]) -> list[GpuStatus]:
    """Return the GPUs on which one of the processes computes; all where the driver knows none of them."""
    every = list(gpus)
    if all(pids.isdisjoint(gpu.processes) for gpu in every):
        return every
    return [gpu for gpu in every if any(pid in pids and sm for pid, sm, _ in gpu.shares)]


def _grown(before: ActivitySample, after: ActivitySample, *fields: str) -> float:
    return sum(max(0.0, float(getattr(after, field) - getattr(before, field))) for field in fields)


@dataclass(frozen=True, kw_only=True)
class CpuUsage:
    """What the run's processes got between two looks, in cores: `wanted_cores` they could have used, `others_cores`
    had.

    `throttled_cores` cores more they would have had without the `limit_cores` of their container (None: there is none).
    `disk_wait_share` is the part of the time in which they waited for a disk (0-1), which moved `disk_bytes_per_s`
    bytes a second for them.
    """

    seconds: float
    wanted_cores: float
    used_cores: float
    others_cores: float
    throttled_cores: float = 0.0
    limit_cores: float | None = None
    disk_wait_share: float = 0.0
    disk_bytes_per_s: float = 0.0

    @property
    def used_share_of_wanted(self) -> float:
        """The part of what they could have used that they got, 0-1."""
        return min(1.0, self.used_cores / self.wanted_cores) if self.wanted_cores > WAITS_CORES else 1.0

    @property
    def throttled_share_of_wanted(self) -> float:
        """The part of what they could have used that the limit of their container kept from them, 0-1."""
        return (
            self.throttled_cores / (self.throttled_cores + self.used_cores)
            if self.throttled_cores + self.used_cores > WAITS_CORES
            else 0.0
        )


def compute_cpu_usage(earlier: ActivitySample, later: ActivitySample, max_wanted_cores: float) -> CpuUsage:
    """Return the pace of the processes of two looks; they can use `max_wanted_cores` at once, and wait for
    each other beyond that.

    Source: `/proc/PID/schedstat`, of which the second number is how long the first thread was ready and had no core,
    whoever kept it from one. Measured on Linux 6.18: a limit of 0.2 cores shows as 0.8 s a second there too.
    """
    seconds = max(later.time_s - earlier.time_s, _NO_TIME_S)
    before = {process.key: process for process in earlier.processes}
    got = waited = moved = 0.0
    for now in later.processes:
        was = before.get(now.key)
        got += max(0.0, now.cpu_s - (was.cpu_s if was else 0.0))
        waited += max(0.0, now.main_thread_run_delay_s - (was.main_thread_run_delay_s if was else 0.0))
        moved += max(0, _passed(now) - (_passed(was) if was else 0))
    busy = max(0.0, later.machine_busy_s - earlier.machine_busy_s)
    return CpuUsage(
        seconds=seconds,
        wanted_cores=min(max_wanted_cores, (got + waited) / seconds),
        used_cores=got / seconds,
        others_cores=max(0.0, busy - got) / seconds,
        throttled_cores=_held(earlier.cpu_limit, later.cpu_limit, got, waited, seconds) / seconds,
        limit_cores=later.cpu_limit.cores if later.cpu_limit else None,
        disk_wait_share=_disk(earlier, later, seconds, moved),
        disk_bytes_per_s=moved / seconds,
    )


def _passed(process: ProcessUsage) -> int:
    return process.read_bytes + process.write_bytes


def _held(before: CpuLimit | None, after: CpuLimit | None, got: float, waited: float, seconds: float) -> float:
    """Return the time that the limit kept from these processes, s: a neighbour in the container may be who it holds.

    Who uses half of what the limit allows is held by it; of who uses less, no more than it waited.
    """
    if before is None or after is None:
        return 0.0
    throttled = max(0.0, after.throttled_s - before.throttled_s)
    return throttled if got >= after.cores * seconds / 2 else min(throttled, waited)


def _disk(before: ActivitySample, after: ActivitySample, seconds: float, moved: float) -> float:
    """Return the part of the time in which the processes waited for a disk, 0-1.

    One that sleeps for it is seen to; of one whose threads do, the counter of all processes tells while it moves bytes.
    """
    if any(process.waits_for_disk for process in after.processes):
        return 1.0
    if before.disk_wait_s is None or after.disk_wait_s is None or not moved:
        return 0.0
    return min(1.0, max(0.0, after.disk_wait_s - before.disk_wait_s) / seconds)


_KERNEL_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_NETWORK = "/proc/net/dev"
_PROC = Path("/proc")
_LOAD = re.compile(r"(\d+\.\d+)")
_SOME = re.compile(r"^some avg10=(\d+\.\d+) .*total=(\d+)", re.MULTILINE)


class CgroupReader:
    """What the kernel counts for the control group that this process is in when this is made."""

    def __init__(self) -> None:
        self.cpu_limit = CpuLimitReader()
        self._disk = (*(folder / "io.pressure" for _, folder in find_own_cgroups(("",))), _PROC / "pressure/io")

    def _read_disk_wait_s(self) -> float | None:
        """Return how long some process waited for a disk, s; None where the kernel does not tell. Source: psi.rst.

        Of the container alone where the kernel tells that, else of the machine.
        """
        found = next((found for path in self._disk if (found := _SOME.search(read_text(path)))), None)
        return int(found[2]) / 1e6 if found else None


def probe_activity(
    pids: Iterable[int],
    *,
    clock: Callable[[], float] = time.monotonic,
    gpus: bool = True,
    cgroup: CgroupReader | None = None,
) -> ActivitySample:
    """Return the counters of the processes `pids` (those that are gone count nothing), the network and the GPUs.

    Measured: 20 processes without GPUs 1 ms of CPU time on a busy machine.

    Parameters
    ----------
    gpus
        Whether to ask the GPUs' driver, which takes milliseconds where there is one.
    cgroup
        Whose limit and waits for a disk are told; None: they are not.
    """
    found = tuple(activity for pid in pids if (activity := probe_process_usage(pid)))
    received, sent, local = _probe_network()
    return ActivitySample(
        time_s=clock(),
        received_bytes=received,
        sent_bytes=sent,
        loopback_bytes=local,
        gpus=probe_gpus() if gpus else (),
        processes=found,
        machine_busy_s=_probe_busy(),
        cpu_limit=cgroup.cpu_limit.read_if_limited() if cgroup else None,
        disk_wait_s=cgroup._read_disk_wait_s() if cgroup else None,
    )


def probe_process_usage(pid: int) -> ProcessUsage | None:
    """Return the counters of one process, all its threads together; None when it is gone."""
    name, fields = read_stat_fields_or_empty(pid)
    if len(fields) < 22 or (fields[0] in "ZXx" and fields[17] == "1"):
        return None
    lines = read_text(f"/proc/{pid}/io").split()
    io = {lines[i]: int(lines[i + 1]) for i in range(0, len(lines) - 1, 2)}
    return ProcessUsage(
        pid=pid,
        started=int(fields[19]),
        name=name,
        state=fields[0],
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        resident_bytes=int(fields[21]) * _KERNEL_PAGE_BYTES,
        minor_faults=int(fields[7]),
        major_faults=int(fields[9]),
        read_bytes=io.get("read_bytes:", 0),
        write_bytes=io.get("write_bytes:", 0),
        read_chars=io.get("rchar:", 0),
        write_chars=io.get("wchar:", 0),
        main_thread_run_delay_s=_probe_waited(pid),
    )


def _probe_waited(pid: int) -> float:
    """Return how long the first thread was ready and had no core, s; 0 where the kernel does not count it.

    Source: the kernel's sched-stats, "/proc/<pid>/schedstat": ns on a core, ns on a run queue, number of turns.
    """
    fields = read_text(f"/proc/{pid}/schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) == 3 else 0.0


def _probe_busy() -> float:
    """Return the time that the machine's cores were at work, s: user, nice, system, irq, softirq, steal of proc(5)."""
    try:
        with open("/proc/stat", "rb", buffering=0) as file:  # the rest is long, and nobody's
            fields = file.readline().split()
    except OSError:
        return 0.0
    return sum(int(fields[at]) for at in (1, 2, 3, 6, 7, 8)) / _TICKS_PER_S if len(fields) > 8 else 0.0


def _probe_network() -> tuple[int, int, int]:
    """Return received and sent bytes of all interfaces but loopback, then loopback's."""
    received = sent = local = 0
    for line in read_text(_NETWORK).splitlines()[2:]:
        name, _, counters = line.partition(":")
        fields = counters.split()
        if len(fields) < 9:
            continue
        if name.strip() == "lo":
            local += int(fields[0])
        else:
            received += int(fields[0])
            sent += int(fields[8])
    return received, sent, local


def probe_pressure(proc: Path = _PROC) -> Pressure:
    """Return the pressure now; what a kernel without PSI, or a container without /proc/pressure, lacks is `None`."""
    load = _LOAD.match(read_text(proc / "loadavg"))
    cpu, io, memory = (_SOME.search(read_text(proc / "pressure" / name)) for name in ("cpu", "io", "memory"))
    told = (float(found[1]) if found else None for found in (load, cpu, io, memory))
    return Pressure(**dict(zip(("load_average", "cpu_pct", "io_pct", "memory_pct"), told, strict=True)))
