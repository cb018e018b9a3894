"""The filter of system calls that every program runs under: a fixed list of refused calls, as BPF for x86-64.

It refuses what reaches beyond the program's own processes and folder and what Landlock does not govern. All else is
allowed: interpreters and compilers need some 150 calls, which differ between C libraries. A call that is newer than
this list is unknown to the program (ENOSYS). Sources: Linux include/uapi/linux/{seccomp,filter,audit}.h and the system
call table of x86-64 up to 6.18.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct

from rlbox.system.libc import syscall

Instruction = tuple[int, int, int, int]
"""Operation, jump if true, jump if false, operand: `struct sock_filter`."""

_AUDIT_ARCH = 0xC000003E
_LAST_CALL = 469
"""Number of file_setattr, the newest call that was looked at."""

_REFUSED = {  # with EPERM
    # network and Unix sockets; a socketpair needs none of these (sendmsg would send descriptors)
    "socket": 41, "connect": 42, "accept": 43, "bind": 49, "listen": 50, "accept4": 288, "sendmsg": 46,
    "sendmmsg": 307,
    # memory, descriptors and signals of other processes
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "pidfd_open": 434,
    "pidfd_getfd": 438, "pidfd_send_signal": 424, "process_madvise": 440, "process_mrelease": 448, "move_pages": 279,
    "migrate_pages": 256, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297,
    # mounts, namespaces, and files by handle, which Landlock does not see
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442,
    "open_tree_attr": 467, "open_by_handle_at": 304, "name_to_handle_at": 303, "quotactl": 179, "quotactl_fd": 443,
    "swapon": 167, "swapoff": 168, "statmount": 457, "listmount": 458,
    # kernel objects that outlive a program, memory that no limit counts; inotify tells of our measurements
    "shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64, "semop": 65, "semtimedop": 220, "semctl": 66, "msgget": 68,
    "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "mq_open": 240, "mq_unlink": 241, "add_key": 248, "request_key": 249,
    "keyctl": 250, "memfd_create": 319, "memfd_secret": 447, "inotify_init": 253, "inotify_init1": 294,
    # ways around a filter, and large interfaces with a history of holes
    "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "io_uring_enter": 426,
    "io_uring_register": 427, "seccomp": 317, "fanotify_init": 300, "modify_ldt": 154, "lookup_dcookie": 212,
    # clock, name, modules and power of the machine; all need privileges that a program has not
    "reboot": 169, "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313,
    "delete_module": 176, "acct": 163, "settimeofday": 164, "adjtimex": 159, "clock_settime": 227,
    "clock_adjtime": 305, "sethostname": 170, "setdomainname": 171, "syslog": 103, "vhangup": 153, "iopl": 172,
    "ioperm": 173, "ioprio_set": 251, "nfsservctl": 180, "personality": 135,
}  # fmt: skip
_IGNORED = {  # return 0 and do nothing: honest programs call them, and an error would end those
    # mode, owner, times and attributes of files, for which Landlock has no rights
    "chmod": 90, "fchmod": 91, "fchmodat": 268, "fchmodat2": 452, "chown": 92, "fchown": 93, "lchown": 94,
    "fchownat": 260, "utime": 132, "utimes": 235, "futimesat": 261, "utimensat": 280, "setxattr": 188,
    "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199,
    "setxattrat": 463, "removexattrat": 466, "file_setattr": 469,
    "setsid": 112, "setpgid": 109,  # all processes of a program stay in one group, which one signal ends
    "sync": 162, "syncfs": 306,  # would wait for every disk of the machine
}  # fmt: skip
_CONDITIONAL = {  # depend on their arguments
    "clone": 56, "clone3": 435, "socketpair": 53, "sendto": 44, "mmap": 9, "fallocate": 285, "prlimit64": 302,
    "sched_setaffinity": 203, "sched_setscheduler": 144, "sched_setparam": 142, "sched_setattr": 314,
    "setpriority": 141, "prctl": 157, "fcntl": 72, "ioctl": 16, "kill": 62, "tkill": 200, "tgkill": 234,
    "truncate": 76, "open": 2, "openat": 257, "openat2": 437,
}  # fmt: skip
_FORKS = {"clone": 56, "fork": 57, "vfork": 58}  # the worker is asked
_SECCOMP, NEW_LISTENER = 317, 8


def install_filter(code: bytes, flags: int = 0) -> int:
    """Put this process and all its children under a filter; return its listener with `NEW_LISTENER`; raises OSError."""
    if os.uname().machine != "x86_64":
        raise OSError(f"no filter for {os.uname().machine}")
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("=HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    return syscall("seccomp", _SECCOMP, 1, flags, program)


def receive_fork_request(listener: int) -> int:
    """Return the id of a process or thread that waits to be made; raises OSError where there is none any more."""
    notification = bytearray(80)
    fcntl.ioctl(listener, 0xC0502100, notification, True)
    return int(struct.unpack_from("=Q", notification)[0])


def answer_fork_request(listener: int, notification_id: int, *, allow: bool) -> None:
    """Let the process or thread be made (SECCOMP_USER_NOTIF_FLAG_CONTINUE), or fail with EAGAIN."""
    answer = struct.pack("=QqiI", notification_id, 0, *((0, 1) if allow else (-errno.EAGAIN, 0)))
    fcntl.ioctl(listener, 0xC0182101, bytearray(answer), True)


_LOAD, _AND, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW: Instruction = (_RETURN, 0, 0, 0x7FFF0000)
_KILL: Instruction = (_RETURN, 0, 0, 0x80000000)
_ASK_LISTENER: Instruction = (_RETURN, 0, 0, 0x7FC00000)


def _refuse(error: int) -> Instruction:
    """Return what ends a call with an error of the kernel's, or without one and without an effect (0)."""
    return _RETURN, 0, 0, 0x00050000 | error


_EPERM = _refuse(errno.EPERM)
_LOAD_CALL = [
    (_LOAD, 0, 0, 4), (_IF_EQUAL, 1, 0, _AUDIT_ARCH), _KILL,  # a call of another machine, such as 32-bit x86
    (_LOAD, 0, 0, 0),
]  # fmt: skip


def build_fork_notify_filter() -> bytes:
    """Return the filter that asks its listener about each new process and thread, and about nothing else."""
    return _build({number: [_ASK_LISTENER] for number in _FORKS.values()}, _LOAD_CALL)


def build_syscall_filter(*, signal_pid: int | None = None, allow_truncate: bool = True) -> bytes:
    """Return the filter as an array of `struct sock_filter`.

    `signal_pid`: only this process can be sent signals, where Landlock does not keep them inside (before version 6).
    `allow_truncate`: False where Landlock does not govern truncation (before version 3).
    """
    rules = {number: [_EPERM] for number in _REFUSED.values()} | {number: [_refuse(0)] for number in _IGNORED.values()}
    conditional = _build_conditional_rules(signal_pid, allow_truncate)
    rules |= {_CONDITIONAL[name]: body for name, body in conditional.items()}
    # the last two steps: a newer call, or one by the numbers of x32
    return _build(rules, [*_LOAD_CALL, (_IF_AT_LEAST, 0, 1, _LAST_CALL + 1), _refuse(errno.ENOSYS)])


def _build(rules: dict[int, list[Instruction]], head: list[Instruction]) -> bytes:
    code = list(head)
    for number, body in rules.items():
        code += [(_IF_EQUAL, 0, len(body), number), *body]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in [*code, _ALLOW])


def _build_conditional_rules(signal_pid: int | None, allow_truncate: bool) -> dict[str, list[Instruction]]:
    rules = {
        # new namespaces: CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET, TIME
        "clone": [_load_argument(0), (_IF_ANY_BIT, 0, 1, 0x7E020080), _EPERM, _ALLOW],
        # its flags lie in memory, where no filter looks; C libraries then use clone
        "clone3": [_refuse(errno.ENOSYS)],
        # AF_UNIX alone: a pair of the program's own
        "socketpair": [_load_argument(0), (_IF_EQUAL, 1, 0, 1), _EPERM, _ALLOW],
        # to no address (both halves of the pointer are 0): over a pair, to its other end
        "sendto": [
            _load_argument(4), (_IF_EQUAL, 0, 2, 0), _load_argument(4, upper_half=True), (_IF_EQUAL, 1, 0, 0),
            _EPERM, _ALLOW,
        ],
        # MAP_HUGETLB: memory that counts for no process
        "mmap": [_load_argument(3), (_IF_ANY_BIT, 0, 1, 0x40000), _refuse(errno.ENOMEM), _ALLOW],
        # fills a disk faster than it is measured; C libraries then write zeros
        "fallocate": [_refuse(errno.EOPNOTSUPP)],
        # the priority of this process alone (PRIO_PROCESS, 0)
        "setpriority": [
            _load_argument(0), (_IF_EQUAL, 0, 3, 0), _load_argument(1), (_IF_EQUAL, 0, 1, 0), _ALLOW, _EPERM,
        ],
        # PR_SET_PDEATHSIG; PR_SET_DUMPABLE hides what is measured; PR_SET_SECCOMP; SYSCALL_USER_DISPATCH
        "prctl": _refuse_values(0, 1, 4, 22, 59),
        # F_SETOWN, F_SETSIG, F_SETOWN_EX: a signal to anybody; F_SETLEASE, F_NOTIFY: tell when a file is looked at
        "fcntl": _refuse_values(1, 8, 10, 15, 1024, 1026),
        # TIOCSTI, TIOCLINUX: input for a terminal; FIOSETOWN, SIOCSPGRP: a signal to anybody
        "ioctl": _refuse_values(1, 0x5412, 0x541C, 0x8901, 0x8902),
        # not to a group (0 or less): all processes of the program are in one
        "kill": [_load_argument(0), (_IF_EQUAL, 1, 0, 0), (_IF_ANY_BIT, 0, 1, 0x80000000), _EPERM, _ALLOW],
    }  # fmt: skip
    for name in ("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"):
        # limits and scheduling of this process alone
        rules[name] = [_load_argument(0), (_IF_EQUAL, 1, 0, 0), _EPERM, _ALLOW]
    if signal_pid:
        own = [_load_argument(0), (_IF_EQUAL, 0, 1, signal_pid), _ALLOW, _EPERM]
        rules |= {"kill": own, "tgkill": own, "tkill": [_EPERM]}
    if not allow_truncate:
        rules |= {"truncate": [_EPERM], "openat2": [_refuse(errno.ENOSYS)]}  # flags of openat2 lie in memory
        for name, index in (("open", 1), ("openat", 2)):
            # O_TRUNC with neither O_WRONLY nor O_RDWR needs no right to write before Landlock's version 3
            not_written = [(_AND, 0, 0, 3), (_IF_EQUAL, 2, 0, 1), (_IF_EQUAL, 1, 0, 2), _EPERM]
            rules[name] = [_load_argument(index), (_IF_ANY_BIT, 0, 4, 0o1000), *not_written, _ALLOW]
    return rules


def _load_argument(index: int, *, upper_half: bool = False) -> Instruction:
    return _LOAD, 0, 0, 16 + 8 * index + 4 * upper_half


def _refuse_values(index: int, *values: int) -> list[Instruction]:
    checks = [step for value in values for step in ((_IF_EQUAL, 0, 1, value), _EPERM)]
    return [_load_argument(index), *checks, _ALLOW]
