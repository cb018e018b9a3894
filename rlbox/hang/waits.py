"""What a process waits for, as a value and as a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Literal

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


def get_syscall_name(machine: str, number: int) -> str:
    """Return the name of a system call of a machine (`x86_64`, `aarch64`); `call N` when it is none of those known."""
    return _NUMBERS.get(machine, {}).get(number, f"call {number}")


@dataclass(frozen=True, kw_only=True)
class ThreadWait:
    """What one thread waits for; `description` continues "it ...", `holder_pid` is the process it waits for (0: not
    known).
    """

    thread: int
    name: str
    kind: WaitKind
    description: str
    syscall: str = ""
    kernel_function: str = ""
    holder_pid: int = 0


@dataclass(frozen=True, kw_only=True)
class Frame:
    function: str
    file: str
    line: int
    is_library: bool = False

    @property
    def bare_name(self) -> str:
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
    stack: tuple[Frame, ...] = ()
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
    def collective(self) -> str:
        return find_collective_name(self.stack)


_COLLECTIVES = frozenset({
    "all_reduce", "allreduce", "all_gather", "allgather", "all_gather_object", "all_gather_into_tensor", "broadcast",
    "broadcast_object_list", "barrier", "monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "scatter", "gather", "gather_object", "all_to_all", "all_to_all_single", "send", "recv", "batch_isend_irecv",
    "init_process_group", "_store_based_barrier", "new_group", "rendezvous",
})  # fmt: skip


def is_collective(frame: Frame) -> bool:
    """Return whether a frame is in a library of collectives: torch.distributed, vLLM's or SGLang's communicators."""
    return frame.bare_name in _COLLECTIVES or "/distributed/" in frame.file


def find_collective_name(stack: Sequence[Frame]) -> str:
    return next((frame.function for frame in stack if frame.bare_name in _COLLECTIVES), "")


def describe_wait(process: ProcessWait) -> str:
    """Return what a process does, in one sentence without its subject."""
    thread = process.decisive_thread
    if thread is None:
        return "cannot be looked into"
    what = thread.description
    if thread is not process.threads[0]:
        what = f"waits for its thread {thread.thread} ({thread.name}), which {what}"
    places = _places(process.stack)
    return f"{what}; in {', from '.join(places)}" if places else what


def sort_by_suspicion(processes: Sequence[ProcessWait], suspect_pids: Set[int] = frozenset()) -> list[ProcessWait]:
    """Return the processes, the odd one out first: one of `suspect_pids`, else one that is not where most of its
    fellows are.

    Fellows are processes of the same kind (ranks, or workers of one command). Among processes that wait for each other
    the one that somebody waits for and that waits for nobody itself comes before the others.
    """
    telling = [process.decisive_thread for process in processes]
    awaited = {thread.holder_pid for thread in telling if thread and thread.kind != "child"}
    alike = Counter(map(_likeness, processes))

    def key(process: ProcessWait) -> tuple[int, ...]:
        thread = process.decisive_thread
        collective = any(other.collective for other in processes if other.rank)
        return (
            0 if process.pid in suspect_pids else 1,
            0 if collective and process.rank and not process.collective else 1,
            0 if process.pid in awaited and thread and not thread.holder_pid and thread.kind != "idle" else 1,
            0 if process.rank else 1,
            alike[_likeness(process)],
            _TELLING.index(thread.kind) if thread else len(_TELLING),
        )

    return sorted(processes, key=lambda process: (*key(process), process.pid))


def describe_prime_suspect_wait(processes_by_suspicion: Sequence[ProcessWait]) -> str:
    """Return what the first of ordered processes waits for, and who waits for it."""
    if not processes_by_suspicion:
        return ""
    first = processes_by_suspicion[0]
    waiting = [
        p
        for p in processes_by_suspicion[1:]
        if (thread := p.decisive_thread) and thread.holder_pid == first.pid and thread.kind != "child"
    ]
    return "; ".join(f"pid {p.pid} ({p.name}) {describe_wait(p)}" for p in (first, *waiting[:1]))


def _likeness(process: ProcessWait) -> tuple[bool, str, str]:
    thread = process.decisive_thread
    return bool(process.rank), process.collective, thread.kind if thread else ""


def _places(stack: Sequence[Frame]) -> list[str]:
    """Return the innermost place and, when that is a library's, the user's code that led there."""
    if not stack:
        return []
    own = next((frame for frame in stack if not frame.is_library), None)
    inner = next((f for f in stack if f.bare_name in _COLLECTIVES), stack[0])
    return [str(inner)] if own is None or own is inner else [str(inner), str(own)]
