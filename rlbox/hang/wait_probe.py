"""What each thread of a process waits for: its system call, and the file, pipe, socket or lock behind it.

Only /proc is read; no process is stopped. Of its memory only the end of a sleep is read.
"""

from __future__ import annotations

import os
import platform
import re
import stat
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rlbox.hang.waits import (
    CHILDREN,
    FUTEXES,
    POLLS,
    READS,
    SLEEPS,
    WRITES,
    Pid,
    ProcessWait,
    ThreadWait,
    WaitKind,
    get_syscall_name,
)
from rlbox.system.counters import probe_process_usage
from rlbox.system.ports import TcpSocket, list_fd_links, list_tcp_sockets
from rlbox.system.process_table import probe_command_line, probe_processes, read_environment, read_text

_LOCK = re.compile(r"^(\d+): (-> )?(\w+)\s+\w+\s+\w+\s+(-?\d+) ([0-9a-f]+:[0-9a-f]+:\d+)")
_COMMAND_CHARS = 80


@dataclass
class _ProcessResources:
    """What processes hold at one moment; looked up when first asked for, since it takes some 50 ms."""

    pids: tuple[int, ...]
    sockets: dict[int, TcpSocket] = field(default_factory=dict)
    pids_by_link: dict[str, set[int]] = field(default_factory=dict)
    lock_waits: dict[int, tuple[int, ...]] = field(default_factory=dict)
    lock_pids_by_file: dict[str, set[int]] = field(default_factory=dict)

    @classmethod
    def probe(cls, pids: Iterable[int]) -> _ProcessResources:
        """Look at what `pids` hold, and at all sockets and file locks of this machine."""
        found = cls(pids=tuple(pids))
        found.sockets = {each.inode: each for each in list_tcp_sockets()}
        for pid in found.pids:
            for link in list_fd_links(pid):
                found.pids_by_link.setdefault(link, set()).add(pid)
        found._probe_locks()
        return found

    def list_other_holders(self, link: str, pid: int) -> list[int]:
        """Return the other processes that hold what a link of /proc/PID/fd names (`pipe:[1]`, a path)."""
        return sorted(self.pids_by_link.get(link, set()) - {pid})

    def find_server_pid(self, address: str) -> int:
        """Return the process that has the other end of a connection to `address`, or listens there; 0: not seen."""
        ends = [each for each in self.sockets.values() if each.local_host_port == address]
        port = int(address.rpartition(":")[2])
        ends += [each for each in self.sockets.values() if each.is_listening_on(port)]
        for each in ends:
            for pid in sorted(self.pids_by_link.get(each.fd_link, ())):
                return pid
        return 0

    def find_peer_pid(self, each: TcpSocket) -> int:
        """Return the process that has the other end of a connection of this machine; 0: not seen."""
        for other in self.sockets.values():
            if other.local_host_port == each.remote_host_port and other.remote_host_port == each.local_host_port:
                return min(self.pids_by_link.get(other.fd_link, ()), default=0)
        return self.find_server_pid(each.remote_host_port)

    def _probe_locks(self) -> None:
        blocked: dict[str, list[int]] = {}
        holding: dict[str, list[int]] = {}
        for line in read_text("/proc/locks").splitlines():
            if found := _LOCK.match(line):
                number, arrow, _, pid, file = found.groups()
                (blocked if arrow else holding).setdefault(number, []).append(int(pid))
                if not arrow:
                    self.lock_pids_by_file.setdefault(file, set()).add(int(pid))
        for number, waiting in blocked.items():
            for pid in waiting:
                self.lock_waits[pid] = tuple(one for one in holding.get(number, []) if one > 0)


def find_server_pid(pids: Iterable[Pid], address: str) -> Pid | None:
    return _ProcessResources.probe(pids).find_server_pid(address) or None


def _format_pid_and_command(pid: int) -> str:
    """Return a process as a sentence names it: `pid 12 (python server.py)`."""
    command = " ".join(probe_command_line(pid).split())
    if len(command) > _COMMAND_CHARS:
        command = f"{command[:_COMMAND_CHARS].rstrip()}…"
    return f"pid {pid} ({command})" if command else f"pid {pid}"


def _read_fd_link(pid: int, number: int) -> str:
    """Return what a file descriptor of a process is; empty when it cannot be seen."""
    try:
        return os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        return ""


def _is_fifo(pid: int, number: int) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(f"/proc/{pid}/fd/{number}").st_mode)
    except OSError:
        return False


_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK")
_PART = "RLBOX_PART"
_MEASURE_S = 0.3
_BUSY = 0.6
_MOST_THREADS = 128
_ON_FILES = READS | WRITES | {"fsync", "fdatasync", "getdents64", "fstat"}
_MACHINE = platform.machine()


class _WaitDescription(NamedTuple):
    """What is waited for: `text` continues "it ...", `holder_pid` is the process that is waited for (0: not known)."""

    kind: WaitKind
    text: str
    holder_pid: int = 0


_MOST_POLLED = 3
_SET_LOCK_WAIT = (7, 38)


def probe_waits(pids: Sequence[int]) -> tuple[ProcessWait, ...]:
    """Return what each of the processes waits for, without Python stacks; takes half a second, stops nothing."""
    begun, before = time.monotonic(), {pid: probe_process_usage(pid) for pid in pids}
    objects = _ProcessResources.probe(probe_processes())
    time.sleep(max(0.0, _MEASURE_S - (time.monotonic() - begun)))
    seconds, after = time.monotonic() - begun, {pid: probe_process_usage(pid) for pid in pids}
    found = []
    for pid in pids:
        was, now = before[pid], after[pid]
        if now is not None:
            cpu = (now.cpu_s - was.cpu_s) / seconds if was else 0.0
            found.append(_process(pid, now.name, cpu, objects))
    return tuple(found)


def _process(pid: int, name: str, cpu: float, objects: _ProcessResources) -> ProcessWait:
    environment = read_environment(pid)
    threads = [_thread(pid, number, cpu, objects) for number in _threads(pid)]
    return ProcessWait(
        pid=pid,
        name=name,
        role=environment.get(_PART, ""),
        rank=next((environment[key] for key in _RANKS if environment.get(key, "").isdigit()), ""),
        command_line=probe_command_line(pid) or name,
        cpu_cores=round(cpu, 2),
        threads=tuple(threads),
    )


def _thread(pid: int, number: int, cpu: float, objects: _ProcessResources) -> ThreadWait:
    folder = f"/proc/{pid}/task/{number}"
    state = read_text(f"{folder}/stat").rpartition(")")[2].split()[:1]
    kernel = read_text(f"{folder}/wchan").strip("0\0\n")
    call, arguments = _call(read_text(f"{folder}/syscall").split())
    kind, what, holder = _judge(pid, number, state[0] if state else "", call, arguments, cpu, objects)
    return ThreadWait(
        thread=number,
        name=read_text(f"{folder}/comm").strip(),
        kind=kind,
        description=what,
        syscall=call,
        kernel_function=kernel,
        holder_pid=holder,
    )


def _call(fields: list[str]) -> tuple[str, list[int]]:
    """Return the name of the call that /proc/PID/syscall shows, and its arguments."""
    if len(fields) < 7 or not fields[0].lstrip("-").isdigit() or int(fields[0]) < 0:
        return (fields[0] if fields[:1] == ["running"] else ""), []
    return get_syscall_name(_MACHINE, int(fields[0])), [int(text, 16) for text in fields[1:7]]


def _judge(
    pid: int, thread: int, state: str, call: str, arguments: list[int], cpu: float, objects: _ProcessResources
) -> _WaitDescription:
    if state in ("T", "t"):
        return _WaitDescription("stopped", "is stopped by a signal (SIGSTOP) or a debugger")
    if state == "R" or call == "running":
        what = f"computes, {100 * cpu:.0f} % of a core, without waiting in the kernel"
        return _WaitDescription(("busy" if cpu >= _BUSY else "unseen"), what)
    if not arguments:
        return _WaitDescription("unseen", "waits; which call it is in may not be seen (no ptrace permission)")
    if state == "D":
        link = _read_fd_link(pid, arguments[0]) if call in _ON_FILES else ""
        return _WaitDescription(
            "disk", f"is blocked in the kernel in {call}" + (f" on {link}" if link else " (a disk or mount)")
        )
    return _describe_call(pid, thread, call, arguments, objects)


_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 8.0, 300.0
_ABSOLUTE_TIME = 1  # TIMER_ABSTIME
_TIMESPEC = struct.Struct("@qq")


def probe_process_sleep_remaining_s(pids: Iterable[int], already_waited_s: float) -> float:
    """Return for how many seconds a main thread still sleeps before it goes on by itself, as one that tries again does.

    0 where none does, for sleeps of less than 8 s (they look whether something has come), and where all have waited
    for `already_waited_s` so far and would have waited for more than five minutes then.
    """
    left_s = max((_probe_sleep_s(pid) for pid in pids), default=0.0)
    return left_s if left_s >= _SHORTEST_PAUSE_S and already_waited_s + left_s <= _LONGEST_PAUSE_S else 0.0


def _probe_sleep_s(pid: int) -> float:
    """Return how long `time.sleep` still lasts; Python 3.11 and newer give the kernel the time at which it ends."""
    call, arguments = _call(read_text(f"/proc/{pid}/syscall").split())
    if call != "clock_nanosleep" or arguments[:2] != [time.CLOCK_MONOTONIC, _ABSOLUTE_TIME]:
        return 0.0
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(arguments[2])
            seconds, nanoseconds = _TIMESPEC.unpack(memory.read(_TIMESPEC.size))
    except (OSError, struct.error):
        return 0.0
    return float(max(0.0, seconds + nanoseconds / 1e9 - time.clock_gettime(time.CLOCK_MONOTONIC)))


def _threads(pid: int) -> list[int]:
    try:
        numbers = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []
    return sorted(numbers, key=lambda number: number != pid)[:_MOST_THREADS]


def _describe_call(
    pid: int, thread: int, call: str, arguments: list[int], objects: _ProcessResources
) -> _WaitDescription:
    """Return what a thread waits for that is in the system call `call`."""
    if call == "flock" or (call == "fcntl" and arguments[1] in _SET_LOCK_WAIT):
        return _lock(pid, thread, call, arguments[0], objects)
    if call in FUTEXES:
        return _futex(pid, arguments[0], objects)
    # select on no descriptor at all is how Python before 3.11 sleeps
    if call in SLEEPS or (call in ("select", "pselect6") and not any(arguments[1:4])):
        return _WaitDescription("sleep", "sleeps between two looks at something")
    if call == "restart_syscall":  # of a call that was interrupted its number is no longer told
        return _WaitDescription("unseen", "waits; which call it is in is not told")
    if call in POLLS:
        return _poll(pid, call, arguments, objects)
    if call in CHILDREN:
        children = [int(text) for text in read_text(f"/proc/{pid}/task/{thread}/children").split()]
        named = f", {_format_pid_and_command(children[0])}" if len(children) == 1 else ""
        return _WaitDescription(
            "child", f"waits for a child process to end{named}", children[0] if len(children) == 1 else 0
        )
    if call in ("open", "openat"):
        return _WaitDescription("file", "opens a file that does not open")
    return _descriptor(pid, call, arguments[0], objects)


def _descriptor(pid: int, call: str, number: int, objects: _ProcessResources) -> _WaitDescription:
    verb = "reads from" if call in READS else "writes to" if call in WRITES else f"is in {call} on"
    kind, thing, holder = _thing(pid, number, objects)
    if call in ("accept", "accept4"):
        return _WaitDescription("idle", f"waits for a client at {thing}")
    if call == "connect":
        return _WaitDescription("socket", f"connects to {thing}, which does not answer", holder)
    return _WaitDescription(kind, f"{verb} {thing}", holder)


def _thing(pid: int, number: int, objects: _ProcessResources) -> _WaitDescription:
    """Return what a file descriptor is, in words, with the process at its other end."""
    link = _read_fd_link(pid, number)
    if link.startswith("socket:["):
        each = objects.sockets.get(int(link[8:-1]))
        return (
            _socket(each, objects)
            if each
            else _WaitDescription("socket", "a local socket" + _other(objects.list_other_holders(link, pid)))
        )
    others = objects.list_other_holders(link, pid)
    if link.startswith("pipe:["):
        return _WaitDescription("pipe", f"a pipe{_other(others)}", others[0] if len(others) == 1 else 0)
    if _is_fifo(pid, number):
        return _WaitDescription("pipe", f"the named pipe {link}{_other(others)}", others[0] if len(others) == 1 else 0)
    return _WaitDescription("file", link or f"file descriptor {number}")


def _socket(each: TcpSocket, objects: _ProcessResources) -> _WaitDescription:
    if each.is_listening:
        return _WaitDescription("socket", f"port {each.local_host_port.rpartition(':')[2]}")
    peer = objects.find_peer_pid(each)
    who = f"which is {_format_pid_and_command(peer)}" if peer else "a process that is not seen here"
    return _WaitDescription("socket", f"{each.remote_host_port}, {who}", peer)


def _other(pids: list[int]) -> str:
    if not pids:
        return ", which no other process has open"
    names = ", ".join(_format_pid_and_command(pid) for pid in pids[:2])
    return f", which {names}{' and others have' if len(pids) > 2 else ' has' if len(pids) == 1 else ' have'} open too"


def _lock(pid: int, thread: int, call: str, number: int, objects: _ProcessResources) -> _WaitDescription:
    link = _read_fd_link(pid, number)
    holders = objects.lock_waits.get(pid, ()) or objects.lock_waits.get(thread, ())
    if not holders:
        others = objects.list_other_holders(link, pid)
        return _WaitDescription(
            "lock", f"waits for a {call} lock on {link}{_held(others)}", others[0] if len(others) == 1 else 0
        )
    return _WaitDescription(
        "lock", f"waits for a {call} lock on {link}, held by {_format_pid_and_command(holders[0])}", holders[0]
    )


def _held(pids: list[int]) -> str:
    return f", which {_format_pid_and_command(pids[0])} has open" if pids else ""


def _futex(pid: int, address: int, objects: _ProcessResources) -> _WaitDescription:
    path = _mapped(pid, address)
    if path.startswith(("/dev/shm/", "/tmp/")):  # noqa: S108 a semaphore or lock that processes share
        others = [other for other in objects.pids if other != pid and _maps(other, path)]
        return _WaitDescription(
            "lock", f"waits for the shared lock {path}{_held(others)}", others[0] if len(others) == 1 else 0
        )
    return _WaitDescription("futex", "waits for a lock or signal inside the process (futex)")


def _poll(pid: int, call: str, arguments: list[int], objects: _ProcessResources) -> _WaitDescription:
    things = [_thing(pid, number, objects) for number in _polled(pid, call, arguments)]
    seen = [thing for thing in things if thing[0] in ("pipe", "socket") and not thing[1].startswith("port ")]
    if len(seen) == 1:
        kind, thing, holder = seen[0]
        return _WaitDescription(kind, f"waits for {thing}", holder)
    listening = [thing for _, thing, _ in things if thing.startswith("port ")]
    if not seen:
        return (
            _WaitDescription("idle", f"waits for a client at {listening[0]}")
            if listening
            else _WaitDescription("poll", f"waits in {call}")
        )
    more = f" and {len(seen) - _MOST_POLLED} more" if len(seen) > _MOST_POLLED else ""
    return _WaitDescription(
        "poll", f"waits for one of {len(seen)}: " + "; ".join(t for _, t, _ in seen[:_MOST_POLLED]) + more
    )


def _polled(pid: int, call: str, arguments: list[int]) -> list[int]:
    """Return the file descriptors that an epoll call looks at; those of poll and select are in the process's memory."""
    if not call.startswith("epoll"):
        return []
    lines = read_text(f"/proc/{pid}/fdinfo/{arguments[0]}").splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("tfd:")]


def _mapped(pid: int, address: int) -> str:
    """Return the file that is mapped at an address; empty when none is."""
    for line in read_text(f"/proc/{pid}/maps").splitlines():
        first, _, last = line.split(" ", 1)[0].partition("-")
        if int(first, 16) <= address < int(last, 16):
            fields = line.split(None, 5)
            return fields[5].removesuffix(" (deleted)") if len(fields) > 5 else ""
    return ""


def _maps(pid: int, path: str) -> bool:
    return path in read_text(f"/proc/{pid}/maps")
