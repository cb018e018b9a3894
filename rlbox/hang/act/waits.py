"""Look what each thread of a process waits for: the system call it is in, and what stands behind its arguments."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence

from rlbox.hang.act.kernel_objects import KernelObjects, link_of
from rlbox.hang.act.wait_calls import Waiting, judge_call
from rlbox.hang.waits import READS, WRITES, ProcessWait, ThreadWait, call_name
from rlbox.machine.act.counters import probe_process_activity
from rlbox.machine.act.process_table import environment_of, probe_command_line, probe_processes, read_text

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK")
_PART = "RLBOX_PART"
_MEASURE_S = 0.3
_BUSY = 0.6
_MOST_THREADS = 128
_ON_FILES = READS | WRITES | {"fsync", "fdatasync", "getdents64", "fstat"}
_MACHINE = platform.machine()


def probe_waits(pids: Sequence[int]) -> tuple[ProcessWait, ...]:
    """Return what each of the processes waits for, without Python stacks; takes half a second, stops nothing."""
    begun, before = time.monotonic(), {pid: probe_process_activity(pid) for pid in pids}
    objects = KernelObjects.probe(probe_processes())
    time.sleep(max(0.0, _MEASURE_S - (time.monotonic() - begun)))
    seconds, after = time.monotonic() - begun, {pid: probe_process_activity(pid) for pid in pids}
    found = []
    for pid in pids:
        was, now = before[pid], after[pid]
        if now is not None:
            cpu = (now.cpu_s - was.cpu_s) / seconds if was else 0.0
            found.append(_process(pid, now.name, cpu, objects))
    return tuple(found)


def _process(pid: int, name: str, cpu: float, objects: KernelObjects) -> ProcessWait:
    environment = environment_of(pid)
    threads = [_thread(pid, number, cpu, objects) for number in _threads(pid)]
    return ProcessWait(
        pid=pid,
        name=name,
        role=environment.get(_PART, ""),
        rank=next((environment[key] for key in _RANKS if environment.get(key, "").isdigit()), ""),
        command=probe_command_line(pid) or name,
        cpu=round(cpu, 2),
        threads=tuple(threads),
    )


def _thread(pid: int, number: int, cpu: float, objects: KernelObjects) -> ThreadWait:
    folder = f"/proc/{pid}/task/{number}"
    state = read_text(f"{folder}/stat").rpartition(")")[2].split()[:1]
    kernel = read_text(f"{folder}/wchan").strip("0\0\n")
    call, arguments = _call(read_text(f"{folder}/syscall").split())
    kind, what, holder = _judge(pid, number, state[0] if state else "", call, arguments, cpu, objects)
    return ThreadWait(
        thread=number,
        name=read_text(f"{folder}/comm").strip(),
        kind=kind,
        what=what,
        call=call,
        kernel=kernel,
        holder=holder,
    )


def _call(fields: list[str]) -> tuple[str, list[int]]:
    """Return the name of the call that /proc/PID/syscall shows, and its arguments."""
    if len(fields) < 7 or not fields[0].lstrip("-").isdigit() or int(fields[0]) < 0:
        return (fields[0] if fields[:1] == ["running"] else ""), []
    return call_name(_MACHINE, int(fields[0])), [int(text, 16) for text in fields[1:7]]


def _judge(
    pid: int, thread: int, state: str, call: str, arguments: list[int], cpu: float, objects: KernelObjects
) -> Waiting:
    if state in ("T", "t"):
        return "stopped", "is stopped by a signal (SIGSTOP) or a debugger", 0
    if state == "R" or call == "running":
        what = f"computes, {100 * cpu:.0f} % of a core, without waiting in the kernel"
        return ("busy" if cpu >= _BUSY else "unseen"), what, 0
    if not arguments:
        return "unseen", "waits; which call it is in may not be seen (no ptrace permission)", 0
    if state == "D":
        link = link_of(pid, arguments[0]) if call in _ON_FILES else ""
        return "disk", f"is blocked in the kernel in {call}" + (f" on {link}" if link else " (a disk or mount)"), 0
    return judge_call(pid, thread, call, arguments, objects)


def _threads(pid: int) -> list[int]:
    try:
        numbers = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []
    return sorted(numbers, key=lambda number: number != pid)[:_MOST_THREADS]
