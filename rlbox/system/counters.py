"""What processes did between two moments, worked out from the kernel's counters."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rlbox.system.gpu import GpuStatus, query_gpus_or_empty
from rlbox.system.limits import CgroupCpu, read_cgroup_cpu_limit
from rlbox.system.process_table import ProcessKey, read_stat_or_empty_fields, read_text_or_empty

BytesPerSecond = float
ChangedBytesPerSecond = float
Cores = float
Share0To1 = float
Percent = int
_MIN_SECONDS = 1e-3
_PAGE_BYTES = 4096
"""The least that a page which had to be waited for has read."""
_WAITS_CORES = 0.25
"""Who wants less of a core than this waits for something else: what stands beside a hung training wakes at times."""


@dataclass(frozen=True, kw_only=True)
class ProcessUsage:
    """Counters of one process since it started; `started` (clock ticks) tells it from a later one with its id.

    `read_bytes` and `write_bytes` passed a disk or a network file system, `read_chars` and `write_chars` passed a read
    or write call (page cache, pipes and sockets included). Zero where the kernel does not let us look.
    `main_thread_run_delay_s` is how long its first thread was ready to go on and had no core.
    """

    pid: int
    start_ticks: int
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
    def key(self) -> ProcessKey:
        return ProcessKey(self.pid, self.start_ticks)


@dataclass(frozen=True, kw_only=True)
class ActivitySample:
    """Counters of the living processes of a run at `time_s` (a clock that only goes forward).

    `received_bytes` and `sent_bytes` are those of all interfaces but loopback; `loopback_bytes` is loopback's.
    `machine_busy_s` is the time that all cores of the machine were at work, whoever for. `cpu_limit` is None without
    one.
    """

    time_s: float
    received_bytes: int
    sent_bytes: int
    loopback_bytes: int
    gpus: tuple[GpuStatus, ...]
    processes: tuple[ProcessUsage, ...]
    machine_busy_s: float = 0.0
    cpu_limit: CgroupCpu | None = None


@dataclass(frozen=True, kw_only=True)
class Pressure:
    """How many wait for the machine. `load_average`: processes that run or wait for a core or a disk, over the last
    minute; the others percent of the last ten seconds in which some process waited for it. `None`: the kernel does not
    tell. Source: proc(5), PSI.
    """

    load_average: float | None = None
    cpu_some_avg10_pct: float | None = None
    io_some_avg10_pct: float | None = None
    memory_some_avg10_pct: float | None = None


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
    local: BytesPerSecond = 0.0
    memory: ChangedBytesPerSecond = 0.0
    faults: float = 0.0
    cpu: Cores = 0.0
    gpu: Percent = 0
    gpu_power: Share0To1 = 0.0
    gpu_memory: Percent = 0


def compute_rates(earlier: ActivitySample, later: ActivitySample) -> ActivityRates:
    """Return what happened between two looks.

    Processes are compared one by one: a new one counts from zero, one that is gone does not make a sum fall. `read`
    and `write` are the larger of what passed disks and what passed calls, so that mapped files count too; where a file
    system counts neither (FUSE), what was mapped counts by the pages that were waited for.
    """
    seconds = max(later.time_s - earlier.time_s, _MIN_SECONDS)
    pairs = _pair_processes(earlier, later)

    def rate(field: str) -> float:
        return _sum_growth(pairs, field) / seconds

    received, sent, loopback = (
        max(0, getattr(later, field) - getattr(earlier, field))
        for field in ("received_bytes", "sent_bytes", "loopback_bytes")
    )
    gpus = select_computing_gpus_all_if_unmatched(later.gpus, {process.pid for process in later.processes})
    memory_change = sum(abs(now.resident_bytes - (before.resident_bytes if before else 0)) for before, now in pairs)
    return ActivityRates(
        seconds=seconds,
        read=max(rate("read_bytes"), rate("read_chars"), _PAGE_BYTES * rate("major_faults")),
        write=max(rate("write_bytes"), rate("write_chars")),
        network=(received + sent) / seconds,
        local=loopback / seconds,
        memory=memory_change / seconds,
        faults=rate("minor_faults") + rate("major_faults"),
        cpu=rate("cpu_s"),
        gpu=max((gpu.utilization for gpu in gpus), default=0),
        gpu_power=max((gpu.power_ratio for gpu in gpus), default=0.0),
        gpu_memory=max((gpu.memory_utilization for gpu in gpus), default=0),
    )


def select_computing_gpus_all_if_unmatched(gpus: Iterable[GpuStatus], pids: set[int]) -> list[GpuStatus]:
    every = list(gpus)
    if all(pids.isdisjoint(gpu.processes) for gpu in every):
        return every
    return [gpu for gpu in every if any(pid in pids and sm for pid, sm, _ in gpu.shares)]


_ProcessPairs = list[tuple[ProcessUsage | None, ProcessUsage]]


def _pair_processes(earlier: ActivitySample, later: ActivitySample) -> _ProcessPairs:
    before = {process.key: process for process in earlier.processes}
    return [(before.get(process.key), process) for process in later.processes]


def _sum_growth(pairs: _ProcessPairs, field: str) -> float:
    growths = (float(getattr(now, field) - (getattr(before, field) if before else 0)) for before, now in pairs)
    return sum(max(0.0, growth) for growth in growths)


@dataclass(frozen=True, kw_only=True)
class CpuUsage:
    """What the run's processes got between two looks, in cores: `wanted_cores` they could have used, `others_cores`
    had.

    `throttled_cores` cores more they would have had without the `limit_cores` of their container (None: there is none).
    """

    seconds: float
    wanted_cores: float
    used_cores: float
    others_cores: float
    throttled_cores: float = 0.0
    limit_cores: float | None = None

    @property
    def used_share_of_wanted_or_1(self) -> float:
        return min(1.0, self.used_cores / self.wanted_cores) if self.wanted_cores > _WAITS_CORES else 1.0

    @property
    def throttled_share_of_used_and_throttled(self) -> float:
        wanted = self.throttled_cores + self.used_cores
        return self.throttled_cores / wanted if wanted > _WAITS_CORES else 0.0


def compute_cpu_usage(earlier: ActivitySample, later: ActivitySample, max_wanted_cores: float) -> CpuUsage:
    """Return the pace of the processes of two looks; they can use `max_wanted_cores` at once, and wait for
    each other beyond that.

    Source: `/proc/PID/schedstat`, of which the second number is how long the first thread was ready and had no core,
    whoever kept it from one. Measured on Linux 6.18: a limit of 0.2 cores shows as 0.8 s a second there too.
    """
    seconds = max(later.time_s - earlier.time_s, _MIN_SECONDS)
    pairs = _pair_processes(earlier, later)
    got_s, waited_s = _sum_growth(pairs, "cpu_s"), _sum_growth(pairs, "main_thread_run_delay_s")
    throttled_s = 0.0
    if earlier.cpu_limit and later.cpu_limit:
        throttled_s = max(0.0, later.cpu_limit.throttled_s - earlier.cpu_limit.throttled_s)
        # A neighbour in the container may be who is held: of who uses less than half of the limit, only what it waited.
        if got_s < later.cpu_limit.cores * seconds / 2:
            throttled_s = min(throttled_s, waited_s)
    return CpuUsage(
        seconds=seconds,
        wanted_cores=min(max_wanted_cores, (got_s + waited_s) / seconds),
        used_cores=got_s / seconds,
        others_cores=max(0.0, later.machine_busy_s - earlier.machine_busy_s - got_s) / seconds,
        throttled_cores=throttled_s / seconds,
        limit_cores=later.cpu_limit.cores if later.cpu_limit else None,
    )


_KERNEL_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
_PRESSURE = re.compile(r"^some avg10=(\d+\.\d+) ", re.MULTILINE)


def probe_machine_and_process_activity(
    pids: Iterable[int], *, clock: Callable[[], float] = time.monotonic, with_gpus: bool = True
) -> ActivitySample:
    """Return the counters of the processes `pids` (those that are gone count nothing), the network and the GPUs.

    `with_gpus`: ask their driver, which takes milliseconds. Measured without: 20 processes 1 ms of CPU.
    """
    received, sent, loopback = _probe_network()
    return ActivitySample(
        time_s=clock(),
        received_bytes=received,
        sent_bytes=sent,
        loopback_bytes=loopback,
        gpus=query_gpus_or_empty() if with_gpus else (),
        processes=tuple(usage for pid in pids if (usage := probe_process_usage(pid))),
        machine_busy_s=_probe_machine_busy_s(),
        cpu_limit=read_cgroup_cpu_limit(),
    )


def probe_process_usage(pid: int) -> ProcessUsage | None:
    name, fields = read_stat_or_empty_fields(pid)
    if len(fields) < 22 or (fields[0] in "ZXx" and fields[17] == "1"):
        return None
    lines = read_text_or_empty(f"/proc/{pid}/io").split()
    io = {lines[i]: int(lines[i + 1]) for i in range(0, len(lines) - 1, 2)}
    return ProcessUsage(
        pid=pid,
        start_ticks=int(fields[19]),
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
        main_thread_run_delay_s=_probe_run_delay_s(pid),
    )


def _probe_run_delay_s(pid: int) -> float:
    """Source: the kernel's sched-stats, "/proc/<pid>/schedstat": ns on a core, ns on a run queue, number of turns."""
    fields = read_text_or_empty(f"/proc/{pid}/schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) == 3 else 0.0


def _probe_machine_busy_s() -> float:
    """Source: proc(5), /proc/stat: user, nice, system, irq, softirq, steal."""
    fields = read_text_or_empty("/proc/stat").partition("\n")[0].split()
    return sum(int(fields[at]) for at in (1, 2, 3, 6, 7, 8)) / _TICKS_PER_S if len(fields) > 8 else 0.0


def _probe_network() -> tuple[int, int, int]:
    """Return received and sent bytes of all interfaces but loopback, then loopback's."""
    received = sent = loopback = 0
    for line in read_text_or_empty("/proc/net/dev").splitlines()[2:]:
        name, _, counters = line.partition(":")
        fields = counters.split()
        if name.strip() == "lo":
            loopback += int(fields[0])
        else:
            received += int(fields[0])
            sent += int(fields[8])
    return received, sent, loopback


def probe_pressure(proc: Path = _PROC) -> Pressure:
    def read_percent(resource: str) -> float | None:
        pressure = _PRESSURE.search(read_text_or_empty(proc / "pressure" / resource))
        return float(pressure[1]) if pressure else None

    load = read_text_or_empty(proc / "loadavg").split()
    return Pressure(
        load_average=float(load[0]) if load else None,
        cpu_some_avg10_pct=read_percent("cpu"),
        io_some_avg10_pct=read_percent("io"),
        memory_some_avg10_pct=read_percent("memory"),
    )
