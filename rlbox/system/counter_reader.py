"""Read the counters of a run's processes, of the network and of the GPUs; nothing here waits or raises."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from rlbox.system.cgroup import own_groups
from rlbox.system.counters import Activity, Pressure, ProcessActivity
from rlbox.system.gpu import probe_gpus
from rlbox.system.limits import CpuLimitFile
from rlbox.system.process_table import read_text, stat_fields

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_NETWORK = "/proc/net/dev"
_PROC = Path("/proc")
_LOAD = re.compile(r"(\d+\.\d+)")
_SOME = re.compile(r"^some avg10=(\d+\.\d+) .*total=(\d+)", re.MULTILINE)


class GroupFiles:
    """What the kernel counts for the control group that this process is in when this is made."""

    def __init__(self) -> None:
        self.limit = CpuLimitFile()
        self._disk = (*(folder / "io.pressure" for _, folder in own_groups(("",))), _PROC / "pressure/io")

    def disk_s(self) -> float | None:
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
    group: GroupFiles | None = None,
) -> Activity:
    """Return the counters of the processes `pids` (those that are gone count nothing), the network and the GPUs.

    Measured: 20 processes without GPUs 1 ms of CPU time on a busy machine.

    Parameters
    ----------
    gpus
        Whether to ask the GPUs' driver, which takes milliseconds where there is one.
    group
        Whose limit and waits for a disk are told; None: they are not.
    """
    found = tuple(activity for pid in pids if (activity := probe_process_activity(pid)))
    received, sent, local = _probe_network()
    return Activity(
        t_s=clock(),
        received_bytes=received,
        sent_bytes=sent,
        local_bytes=local,
        gpus=probe_gpus() if gpus else (),
        processes=found,
        busy_s=_probe_busy(),
        limit=group.limit.read() if group else None,
        disk_s=group.disk_s() if group else None,
    )


def probe_process_activity(pid: int) -> ProcessActivity | None:
    """Return the counters of one process, all its threads together; None when it is gone."""
    name, fields = stat_fields(pid)
    if len(fields) < 22 or (fields[0] in "ZXx" and fields[17] == "1"):
        return None
    lines = read_text(f"/proc/{pid}/io").split()
    io = {lines[i]: int(lines[i + 1]) for i in range(0, len(lines) - 1, 2)}
    return ProcessActivity(
        pid=pid,
        started=int(fields[19]),
        name=name,
        state=fields[0],
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        resident_bytes=int(fields[21]) * _PAGE_BYTES,
        minor_faults=int(fields[7]),
        major_faults=int(fields[9]),
        read_bytes=io.get("read_bytes:", 0),
        write_bytes=io.get("write_bytes:", 0),
        read_chars=io.get("rchar:", 0),
        write_chars=io.get("wchar:", 0),
        waited_s=_probe_waited(pid),
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
    return Pressure(**dict(zip(("load", "cpu_pct", "io_pct", "memory_pct"), told, strict=True)))
