"""What each process waits for: the system call of each thread, and the file, pipe, socket or lock behind it.

Only /proc is read; no process is stopped. Of its memory only the end of a sleep is read.
"""

from __future__ import annotations

import os
import platform
import re
import stat
import struct
import time
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rlbox.i18n import _, join, ngettext
from rlbox.system.counters import probe_process_usage
from rlbox.system.ports import TcpSocket, list_fd_link_targets, list_tcp_sockets
from rlbox.system.process_table import probe_processes, read_cmdline_or_empty, read_environ_or_empty, read_text_or_empty

Pid = int
WaitKind = Literal[
    "disk", "lock", "stopped", "file", "pipe", "socket", "child", "futex", "poll", "sleep", "busy", "idle", "unseen",
]  # fmt: skip

# Kernel's numbers of the calls in which a process may wait. Source: arch/x86/entry/syscalls/syscall_64.tbl and
# include/uapi/asm-generic/unistd.h.
_NUMBERS: dict[str, dict[int, str]] = {
    "x86_64": {
        0: "read", 1: "write", 2: "open", 4: "stat", 5: "fstat", 6: "lstat", 7: "poll", 16: "ioctl", 17: "pread64",
        19: "readv", 20: "writev", 23: "select", 24: "sched_yield", 26: "msync", 34: "pause", 35: "nanosleep",
        42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 61: "wait4",
        65: "semop", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync", 130: "rt_sigsuspend", 202: "futex",
        217: "getdents64", 219: "restart_syscall", 220: "semtimedop", 230: "clock_nanosleep", 232: "epoll_wait",
        247: "waitid", 257: "openat", 262: "newfstatat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait",
        288: "accept4", 295: "preadv", 299: "recvmmsg", 332: "statx", 426: "io_uring_enter", 441: "epoll_pwait2",
        449: "futex_waitv",
    },
    "aarch64": {
        22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 56: "openat", 61: "getdents64", 63: "read",
        64: "write", 65: "readv", 66: "writev", 67: "pread64", 69: "preadv", 72: "pselect6", 73: "ppoll",
        79: "newfstatat", 80: "fstat", 82: "fsync", 83: "fdatasync", 95: "waitid", 98: "futex", 101: "nanosleep",
        115: "clock_nanosleep", 124: "sched_yield", 128: "restart_syscall", 133: "rt_sigsuspend", 192: "semtimedop",
        193: "semop", 202: "accept", 203: "connect", 206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg",
        227: "msync", 242: "accept4",
        243: "recvmmsg", 260: "wait4", 291: "statx", 426: "io_uring_enter", 441: "epoll_pwait2", 449: "futex_waitv",
    },
}  # fmt: skip

READS = frozenset({"read", "pread64", "readv", "preadv", "recvfrom", "recvmsg", "recvmmsg"})
WRITES = frozenset({"write", "writev", "sendto", "sendmsg"})
POLLS = frozenset({"poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2"})
SLEEPS = frozenset({"nanosleep", "clock_nanosleep", "pause", "rt_sigsuspend", "sched_yield"})
CHILDREN = frozenset({"wait4", "waitid"})
FUTEXES = frozenset({"futex", "futex_waitv"})

_TELLING: tuple[WaitKind, ...] = (
    "stopped", "disk", "lock", "file", "pipe", "socket", "busy", "child", "poll", "futex", "sleep", "idle", "unseen",
)  # fmt: skip
_SAYS_MORE = frozenset(_TELLING[:7])
_LIBRARY_THREADS = ("cuda", "NCCL", "nccl", "pt_nccl", "pt_tcpstore", "pt_autograd")
"""Beginnings of names of threads that CUDA, NCCL and PyTorch keep in every process: each waits all its life."""


def get_syscall_name_or_number(machine: str, number: int) -> str:
    return _NUMBERS.get(machine, {}).get(number, f"call {number}")


@dataclass(frozen=True, kw_only=True)
class ThreadWait:
    """`description` continues "it ...", `holder_pid_or_0` is the process that is waited for (0: not known)."""

    thread: int
    name: str
    kind: WaitKind
    description: str
    syscall: str = ""
    kernel_function: str = ""
    holder_pid_or_0: int = 0


@dataclass(frozen=True, kw_only=True)
class PythonFrame:
    function: str
    file: str
    line: int
    is_library: bool = False

    @property
    def lowercase_unqualified_name(self) -> str:
        return self.function.rpartition(".")[2].lower()

    def __str__(self) -> str:
        return f"{self.function} ({self.file.rpartition('/')[2]}:{self.line})"


@dataclass(frozen=True, kw_only=True)
class ProcessWait:
    """One process of a hung stage: its threads, the first being its main thread, and the main thread's Python stack.

    `rank` is empty where there is none, `role` is what it is in the run (`main`, the name of a service, or a rank),
    `stack` begins with the innermost frame, `stack_error` says why there is none.
    """

    pid: int
    name: str
    role: str
    rank: str
    command_line: str
    cpu_cores: float
    threads: tuple[ThreadWait, ...]
    stack: tuple[PythonFrame, ...] = ()
    stack_error: str = ""

    @property
    def decisive_thread(self) -> ThreadWait | None:
        """The thread that says most: the main one, unless it only waits for another of its threads."""
        if not self.threads:
            return None
        main = self.threads[0]
        if main.kind not in ("futex", "poll", "sleep", "idle", "unseen"):
            return main
        others = [
            thread
            for thread in self.threads[1:]
            if thread.kind in _SAYS_MORE and not thread.name.startswith(_LIBRARY_THREADS)
        ]
        return min(others, key=lambda t: _TELLING.index(t.kind)) if others else main

    @property
    def collective_name_or_empty(self) -> str:
        return find_collective_name_or_empty(self.stack)


_COLLECTIVES = frozenset({
    "all_reduce", "allreduce", "all_gather", "allgather", "all_gather_object", "all_gather_into_tensor", "broadcast",
    "broadcast_object_list", "barrier", "monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "scatter", "gather", "gather_object", "all_to_all", "all_to_all_single", "send", "recv", "batch_isend_irecv",
    "init_process_group", "_store_based_barrier", "new_group", "rendezvous",
})  # fmt: skip


def is_collective_or_distributed(frame: PythonFrame) -> bool:
    return frame.lowercase_unqualified_name in _COLLECTIVES or "/distributed/" in frame.file


def find_collective_name_or_empty(stack: Sequence[PythonFrame]) -> str:
    return next((frame.function for frame in stack if frame.lowercase_unqualified_name in _COLLECTIVES), "")


def describe_wait(process: ProcessWait) -> str:
    thread = process.decisive_thread
    if thread is None:
        return _("cannot be looked into")
    what = thread.description
    if thread is not process.threads[0]:
        awaited = f"{thread.thread} ({thread.name})"
        what = _("waits for its thread {thread}, which {what}").format(thread=awaited, what=what)
    places = _places(process.stack)
    return join("", (what, _("; in "), join(_(", from "), places))) if places else what


def sort_by_suspicion(processes: Sequence[ProcessWait], suspect_pids: Set[int] = frozenset()) -> list[ProcessWait]:
    """Return the processes, the odd one out first: one of `suspect_pids`, else one that is not where most others are.

    Among processes that wait for each other the one that somebody waits for and that waits for nobody itself comes
    before the others.
    """
    telling = [process.decisive_thread for process in processes]
    awaited = {thread.holder_pid_or_0 for thread in telling if thread and thread.kind != "child"}
    alike = Counter(map(_likeness, processes))

    def key(process: ProcessWait) -> tuple[int, ...]:
        thread = process.decisive_thread
        collective = any(other.collective_name_or_empty for other in processes if other.rank)
        return (
            0 if process.pid in suspect_pids else 1,
            0 if collective and process.rank and not process.collective_name_or_empty else 1,
            0 if process.pid in awaited and thread and not thread.holder_pid_or_0 and thread.kind != "idle" else 1,
            0 if process.rank else 1,
            alike[_likeness(process)],
            _TELLING.index(thread.kind) if thread else len(_TELLING),
        )

    return sorted(processes, key=lambda process: (*key(process), process.pid))


def describe_prime_suspect_wait_or_empty(processes_by_suspicion: Sequence[ProcessWait]) -> str:
    if not processes_by_suspicion:
        return ""
    first = processes_by_suspicion[0]
    waiting = [
        p
        for p in processes_by_suspicion[1:]
        if (thread := p.decisive_thread) and thread.holder_pid_or_0 == first.pid and thread.kind != "child"
    ]
    return join("; ", (join(" ", (f"pid {p.pid} ({p.name})", describe_wait(p))) for p in (first, *waiting[:1])))


def _likeness(process: ProcessWait) -> tuple[bool, str, str]:
    thread = process.decisive_thread
    return bool(process.rank), process.collective_name_or_empty, thread.kind if thread else ""


def _places(stack: Sequence[PythonFrame]) -> list[str]:
    if not stack:
        return []
    own = next((frame for frame in stack if not frame.is_library), None)
    inner = next((f for f in stack if f.lowercase_unqualified_name in _COLLECTIVES), stack[0])
    return [str(inner)] if own is None or own is inner else [str(inner), str(own)]


_LOCK = re.compile(r"^(\d+): (-> )?\w+\s+\w+\s+\w+\s+(-?\d+) ")
_COMMAND_CHARS = 80
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK")
_PART = "RLBOX_PART"
_MEASURE_S = 0.3
_BUSY = 0.6
_MOST_THREADS = 128
_MOST_POLLED = 3
_SET_LOCK_WAIT = (7, 38)
_ON_FILES = READS | WRITES | {"fsync", "fdatasync", "getdents64", "fstat"}
_MACHINE = platform.machine()


class _Wait(NamedTuple):
    kind: WaitKind
    text: str
    holder_pid: int = 0


class _ProcessResources:
    """What processes hold at one moment, and all sockets and file locks of this machine; takes some 50 ms."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.pids = tuple(pids)
        self.sockets = {each.inode: each for each in list_tcp_sockets()}
        self._pids_by_link: dict[str, set[int]] = {}
        for pid in self.pids:
            for link in list_fd_link_targets(pid):
                self._pids_by_link.setdefault(link, set()).add(pid)
        self.holders_by_waiting_pid = _probe_lock_holders()

    def list_other_holders(self, link: str, pid: int) -> list[int]:
        return sorted(self._pids_by_link.get(link, set()) - {pid})

    def find_server_pid(self, address: str) -> int:
        """Return the process that has the other end of a connection to `address`, or listens there; 0: not seen."""
        port = int(address.rpartition(":")[2])
        ends = [each for each in self.sockets.values() if each.local_host_port == address]
        ends += [each for each in self.sockets.values() if each.is_listening_on(port)]
        return next((min(pids) for each in ends if (pids := self._pids_by_link.get(each.proc_fd_link_target))), 0)

    def find_peer_pid(self, each: TcpSocket) -> int:
        for other in self.sockets.values():
            if other.local_host_port == each.remote_host_port and other.remote_host_port == each.local_host_port:
                return min(self._pids_by_link.get(other.proc_fd_link_target, ()), default=0)
        return self.find_server_pid(each.remote_host_port)


def find_pid_serving_address(pids: Iterable[Pid], address: str) -> Pid | None:
    return _ProcessResources(pids).find_server_pid(address) or None


def _probe_lock_holders() -> dict[int, int]:
    """Return a holder for each process that waits for a file lock. Source: proc(5), /proc/locks."""
    locks = [found.groups() for line in read_text_or_empty("/proc/locks").splitlines() if (found := _LOCK.match(line))]
    holders = {number: int(pid) for number, is_blocked, pid in locks if not is_blocked and int(pid) > 0}
    return {int(pid): holders[number] for number, is_blocked, pid in locks if is_blocked and number in holders}


def probe_process_waits_without_stacks(pids: Sequence[int]) -> tuple[ProcessWait, ...]:
    """Return what each of the processes waits for, without Python stacks; takes half a second, stops nothing."""
    begun, before = time.monotonic(), {pid: probe_process_usage(pid) for pid in pids}
    resources = _ProcessResources(probe_processes())
    time.sleep(max(0.0, _MEASURE_S - (time.monotonic() - begun)))
    seconds, found = time.monotonic() - begun, []
    for pid in pids:
        was, now = before[pid], probe_process_usage(pid)
        if now is not None:
            cpu_cores = (now.cpu_s - was.cpu_s) / seconds if was else 0.0
            found.append(_probe_process(pid, now.name, cpu_cores, resources))
    return tuple(found)


def _probe_process(pid: int, name: str, cpu_cores: float, resources: _ProcessResources) -> ProcessWait:
    environment = read_environ_or_empty(pid)
    return ProcessWait(
        pid=pid,
        name=name,
        role=environment.get(_PART, ""),
        rank=next((environment[key] for key in _RANKS if environment.get(key, "").isdigit()), ""),
        command_line=read_cmdline_or_empty(pid) or name,
        cpu_cores=round(cpu_cores, 2),
        threads=tuple(_probe_thread(pid, thread, cpu_cores, resources) for thread in _list_threads(pid)),
    )


def _list_threads(pid: int) -> list[int]:
    try:
        numbers = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []
    return sorted(numbers, key=lambda number: (number != pid, number))[:_MOST_THREADS]


def _probe_thread(pid: int, thread: int, cpu_cores: float, resources: _ProcessResources) -> ThreadWait:
    directory = f"/proc/{pid}/task/{thread}"
    state = read_text_or_empty(f"{directory}/stat").rpartition(")")[2].split()[:1]
    call, arguments = _parse_syscall(read_text_or_empty(f"{directory}/syscall").split())
    kind, text, holder_pid = _describe_thread(
        pid, thread, state[0] if state else "", call, arguments, cpu_cores, resources
    )
    return ThreadWait(
        thread=thread,
        name=read_text_or_empty(f"{directory}/comm").strip(),
        kind=kind,
        description=text,
        syscall=call,
        kernel_function=read_text_or_empty(f"{directory}/wchan").strip("0\0\n"),
        holder_pid_or_0=holder_pid,
    )


def _parse_syscall(fields: list[str]) -> tuple[str, list[int]]:
    if len(fields) < 7 or not fields[0].lstrip("-").isdigit() or int(fields[0]) < 0:
        return (fields[0] if fields[:1] == ["running"] else ""), []
    return get_syscall_name_or_number(_MACHINE, int(fields[0])), [int(text, 16) for text in fields[1:7]]


def _describe_thread(
    pid: int, thread: int, state: str, call: str, arguments: list[int], cpu_cores: float, resources: _ProcessResources
) -> _Wait:
    if state in ("T", "t"):
        return _Wait("stopped", _("is stopped by a signal (SIGSTOP) or a debugger"))
    if state == "R" or call == "running":
        text = _("computes, {percent:.0f} % of a core, without waiting in the kernel").format(percent=100 * cpu_cores)
        return _Wait("busy" if cpu_cores >= _BUSY else "unseen", text)
    if not arguments:
        return _Wait("unseen", _("waits; which call it is in may not be seen (no ptrace permission)"))
    if state == "D":
        link = _read_fd_link(pid, arguments[0]) if call in _ON_FILES else ""
        where = _(" on {link}").format(link=link) if link else _(" (a disk or mount)")
        return _Wait("disk", _("is blocked in the kernel in {call}{where}").format(call=call, where=where))
    return _describe_call(pid, thread, call, arguments, resources)


def _describe_call(pid: int, thread: int, call: str, arguments: list[int], resources: _ProcessResources) -> _Wait:
    if call == "flock" or (call == "fcntl" and arguments[1] in _SET_LOCK_WAIT):
        return _describe_file_lock(pid, thread, call, _read_fd_link(pid, arguments[0]), resources)
    if call in FUTEXES:
        return _describe_futex(pid, arguments[0], resources)
    # select on no descriptor at all is how Python before 3.11 sleeps
    if call in SLEEPS or (call in ("select", "pselect6") and not any(arguments[1:4])):
        return _Wait("sleep", _("sleeps between two looks at something"))
    if call == "restart_syscall":  # of a call that was interrupted its number is no longer told
        return _Wait("unseen", _("waits; which call it is in is not told"))
    if call in POLLS:
        return _describe_poll(pid, call, arguments, resources)
    if call in CHILDREN:
        children = [int(text) for text in read_text_or_empty(f"/proc/{pid}/task/{thread}/children").split()]
        child = children[0] if len(children) == 1 else 0
        text = _("waits for a child process to end")
        return _Wait("child", join(", ", (text, _name_process(child))) if child else text, child)
    if call in ("open", "openat"):
        return _Wait("file", _("opens a file that does not open"))
    kind, thing, holder_pid = _describe_fd(pid, arguments[0], resources)
    if call in ("accept", "accept4"):
        return _Wait("idle", _("waits for a client at {thing}").format(thing=thing))
    if call == "connect":
        return _Wait("socket", _("connects to {thing}, which does not answer").format(thing=thing), holder_pid)
    text = _("reads from {thing}") if call in READS else _("is in {call} on {thing}")
    text = _("writes to {thing}") if call in WRITES else text
    return _Wait(kind, text.format(call=call, thing=thing), holder_pid)


def _describe_fd(pid: int, number: int, resources: _ProcessResources) -> _Wait:
    link = _read_fd_link(pid, number)
    others = resources.list_other_holders(link, pid)
    holder_pid = others[0] if len(others) == 1 else 0
    holders = _name_holders(others)
    if link.startswith("socket:["):
        each = resources.sockets.get(int(link[8:-1]))
        local = _("a local socket{holders}").format(holders=holders)
        return _describe_socket(each, resources) if each else _Wait("socket", local)
    if link.startswith("pipe:["):
        return _Wait("pipe", _("a pipe{holders}").format(holders=holders), holder_pid)
    if _is_fifo(pid, number):
        return _Wait("pipe", _("the named pipe {link}{holders}").format(link=link, holders=holders), holder_pid)
    return _Wait("file", link or _("file descriptor {number}").format(number=number))


def _describe_socket(each: TcpSocket, resources: _ProcessResources) -> _Wait:
    if each.is_listening:
        return _Wait("socket", _("port {port}").format(port=each.local_host_port.rpartition(":")[2]))
    peer = resources.find_peer_pid(each)
    who = _("which is {process}").format(process=_name_process(peer)) if peer else _("a process that is not seen here")
    return _Wait("socket", join(", ", (each.remote_host_port, who)), peer)


def _describe_file_lock(pid: int, thread: int, call: str, link: str, resources: _ProcessResources) -> _Wait:
    holders = resources.holders_by_waiting_pid
    if holder := holders.get(pid) or holders.get(thread):
        text = _("waits for a {call} lock on {link}, held by {holder}")
        return _Wait("lock", text.format(call=call, link=link, holder=_name_process(holder)), holder)
    lock = _("a {call} lock on {link}").format(call=call, link=link)
    return _wait_for_lock_opened_by(resources.list_other_holders(link, pid), lock)


def _describe_futex(pid: int, address: int, resources: _ProcessResources) -> _Wait:
    path = _find_mapped_file(pid, address)
    if path.startswith(("/dev/shm/", "/tmp/")):  # noqa: S108 a semaphore or lock that processes share
        others = [p for p in resources.pids if p != pid and path in read_text_or_empty(f"/proc/{p}/maps")]
        return _wait_for_lock_opened_by(others, _("the shared lock {path}").format(path=path))
    return _Wait("futex", _("waits for a lock or signal inside the process (futex)"))


def _wait_for_lock_opened_by(pids: list[int], lock: str) -> _Wait:
    opened = _(", which {process} has open").format(process=_name_process(pids[0])) if pids else ""
    text = _("waits for {lock}{opened}").format(lock=lock, opened=opened)
    return _Wait("lock", text, pids[0] if len(pids) == 1 else 0)


def _describe_poll(pid: int, call: str, arguments: list[int], resources: _ProcessResources) -> _Wait:
    """Only an epoll call's descriptors are seen; those of poll and select are in the process's memory."""
    lines = read_text_or_empty(f"/proc/{pid}/fdinfo/{arguments[0]}").splitlines() if call.startswith("epoll") else []
    things = [_describe_fd(pid, int(line.split()[1]), resources) for line in lines if line.startswith("tfd:")]
    listening = [thing.text for thing in things if thing.text.startswith("port ")]
    peers = [thing for thing in things if thing.kind in ("pipe", "socket") and thing.text not in listening]
    if len(peers) == 1:
        return peers[0]._replace(text=_("waits for {thing}").format(thing=peers[0].text))
    if not peers:
        idle = _("waits for a client at {thing}").format(thing=listening[0]) if listening else ""
        return _Wait("idle", idle) if idle else _Wait("poll", _("waits in {call}").format(call=call))
    more = _(" and {count} more").format(count=len(peers) - _MOST_POLLED) if len(peers) > _MOST_POLLED else ""
    shown = join("; ", (thing.text for thing in peers[:_MOST_POLLED]))
    return _Wait("poll", _("waits for one of {count}: {shown}{more}").format(count=len(peers), shown=shown, more=more))


def _name_process(pid: int) -> str:
    command = " ".join(read_cmdline_or_empty(pid).split())
    if len(command) > _COMMAND_CHARS:
        command = f"{command[:_COMMAND_CHARS].rstrip()}…"
    return f"pid {pid} ({command})" if command else f"pid {pid}"


def _name_holders(pids: list[int]) -> str:
    if not pids:
        return _(", which no other process has open")
    names = ", ".join(map(_name_process, pids[:2]))
    text = ngettext(", which {names} has open too", ", which {names} have open too", len(pids))
    return (text if len(pids) < 3 else _(", which {names} and others have open too")).format(names=names)


def _read_fd_link(pid: int, number: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        return ""


def _is_fifo(pid: int, number: int) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(f"/proc/{pid}/fd/{number}").st_mode)
    except OSError:
        return False


def _find_mapped_file(pid: int, address: int) -> str:
    for line in read_text_or_empty(f"/proc/{pid}/maps").splitlines():
        first, _, last = line.split(" ", 1)[0].partition("-")
        if int(first, 16) <= address < int(last, 16):
            fields = line.split(None, 5)
            return fields[5].removesuffix(" (deleted)") if len(fields) > 5 else ""
    return ""


_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 8.0, 300.0
_ABSOLUTE_TIME = 1  # TIMER_ABSTIME
_TIMESPEC = struct.Struct("@qq")


def probe_remaining_tolerated_sleep_s_or_0(pids: Iterable[int], already_waited_s: float) -> float:
    """Return for how many seconds a main thread still sleeps before it goes on by itself.

    0 where none does, for sleeps of less than 8 s (they look whether something has come), and where all have waited
    for `already_waited_s` so far and would have waited for more than five minutes then.
    """
    left_s = max((_probe_sleep_s(pid) for pid in pids), default=0.0)
    return left_s if left_s >= _SHORTEST_PAUSE_S and already_waited_s + left_s <= _LONGEST_PAUSE_S else 0.0


def _probe_sleep_s(pid: int) -> float:
    """Return how long `time.sleep` still lasts; Python 3.11 and newer give the kernel the time at which it ends."""
    call, arguments = _parse_syscall(read_text_or_empty(f"/proc/{pid}/syscall").split())
    if call != "clock_nanosleep" or arguments[:2] != [time.CLOCK_MONOTONIC, _ABSOLUTE_TIME]:
        return 0.0
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(arguments[2])
            seconds, nanoseconds = _TIMESPEC.unpack(memory.read(_TIMESPEC.size))
    except (OSError, struct.error):
        return 0.0
    return float(max(0.0, seconds + nanoseconds / 1e9 - time.clock_gettime(time.CLOCK_MONOTONIC)))
