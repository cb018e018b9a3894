"""What a run used, sample by sample: the rows of `resources.jsonl`, and when a disk will be full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from rlbox.record.state import parse_json_as
from rlbox.system.counters import ActivitySample, Pressure, ProcessUsage, compute_cpu_usage, compute_rates
from rlbox.system.process_table import ProcessKey

RESOURCES_FILE = "resources.jsonl"
Percent = float
_FOREVER_S = 366 * 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    index: int
    utilization: Percent
    power_w: float
    memory_bytes: int
    total_bytes: int = 0


_GPU_FIELDS = tuple(field.name for field in fields(GpuSample))


@dataclass(frozen=True, kw_only=True)
class ProcessGroupSample:
    """What the stage's command (`main`) or one service uses: percent of one core, bytes.

    `read_bytes` is what its processes have read since they began, from a disk or from memory that held it.
    """

    cpu_pct: float
    resident_bytes: int
    read_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class ResourceSample:
    """One row: `t` is UTC in ISO 8601, `cpu_pct` percent of one core, `*_bps` bytes per second since the row before.

    `others_pct` is what all that is not the run's had of the machine, in percent of one core; `share_pct` the part that
    the run's processes got of the cores that they could have used. `held_pct` is how much of the cores that they could
    have had the limit of their container kept from them, `None` without one. `load` and `waits_*_pct` are the machine's
    pressure, `None` where its kernel does not tell.
    """

    t: str
    stage: str = ""
    phase: str = ""
    cpu_pct: float = 0.0
    others_pct: float = 0.0
    share_pct: float = 100.0
    held_pct: float | None = None
    resident_bytes: int = 0
    read_bps: float = 0.0
    write_bps: float = 0.0
    received_bps: float = 0.0
    sent_bps: float = 0.0
    disk_free_bytes: int = 0
    load: float | None = None
    waits_cpu_pct: float | None = None
    waits_io_pct: float | None = None
    waits_memory_pct: float | None = None
    gpus: tuple[GpuSample, ...] = ()
    parts: Mapping[str, ProcessGroupSample] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        row = asdict(self)
        return row if self.gpus else {name: value for name, value in row.items() if name != "gpus"}


def create_resource_sample(
    previous: ActivitySample | None,
    current: ActivitySample,
    *,
    part_pids: Mapping[str, set[int]],
    timestamp: str,
    stage: str,
    phase: str,
    disk_free_bytes: int,
    cores: float,
    pressure: Pressure,
) -> ResourceSample:
    """Return the sample of two looks; `part_pids` are ids of processes. Without a look before every rate is 0."""
    previous = previous or current
    rates, pace = compute_rates(previous, current), compute_cpu_usage(previous, current, cores)
    earlier = {process.key: process.cpu_s for process in previous.processes}
    return ResourceSample(
        t=timestamp,
        stage=stage,
        phase=phase,
        cpu_pct=round(100 * rates.cpu, 1),
        others_pct=round(100 * pace.others_cores, 1),
        share_pct=round(100 * pace.used_share_of_wanted_or_1, 1),
        held_pct=None if pace.limit_cores is None else round(100 * pace.throttled_share_of_used_and_throttled, 1),
        resident_bytes=sum(process.resident_bytes for process in current.processes),
        read_bps=round(rates.read),
        write_bps=round(rates.write),
        received_bps=round(max(0, current.received_bytes - previous.received_bytes) / rates.seconds),
        sent_bps=round(max(0, current.sent_bytes - previous.sent_bytes) / rates.seconds),
        disk_free_bytes=disk_free_bytes,
        load=pressure.load_average,
        waits_cpu_pct=pressure.cpu_some_avg10_pct,
        waits_io_pct=pressure.io_some_avg10_pct,
        waits_memory_pct=pressure.memory_some_avg10_pct,
        gpus=tuple(GpuSample(**{name: getattr(gpu, name) for name in _GPU_FIELDS}) for gpu in current.gpus),
        parts={
            name: _sum_part(pids, current.processes, earlier, rates.seconds) for name, pids in sorted(part_pids.items())
        },
    )


def parse_sample(record: object) -> ResourceSample | None:
    return parse_json_as(ResourceSample, record)


def estimate_seconds_until_disk_full(times_and_free_bytes: Sequence[tuple[float, int]]) -> float | None:
    """Return in how many seconds the disk will be full; `times_and_free_bytes` has rising times (s) and free bytes."""
    if len(times_and_free_bytes) < 2:
        return None
    (first_s, first), (last_s, last) = times_and_free_bytes[0], times_and_free_bytes[-1]
    rate = (first - last) / max(last_s - first_s, 1e-3)
    if rate <= 0 or last / rate > _FOREVER_S:
        return None
    return last / rate


def _sum_part(
    pids: set[int], processes: Sequence[ProcessUsage], earlier: Mapping[ProcessKey, float], seconds: float
) -> ProcessGroupSample:
    own = [process for process in processes if process.pid in pids]
    used = sum(max(0.0, process.cpu_s - earlier.get(process.key, 0.0)) for process in own)
    return ProcessGroupSample(
        cpu_pct=round(100 * used / seconds, 1),
        resident_bytes=sum(process.resident_bytes for process in own),
        read_bytes=sum(max(process.read_bytes, process.read_chars) for process in own),
    )
