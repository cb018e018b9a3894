"""The filter of system calls that a program runs under, as BPF; pure, for a machine that is named.

It says no to what reaches beyond the program's own processes and folder where other layers do not, or where one layer
may be missing: sockets, other processes, mounts, kernel objects that outlive a program, and new kernel interfaces.
What changes modes, owners and times of files does nothing and says so to nobody: Landlock knows no such rights.
Source: Linux include/uapi/linux/{seccomp,filter,audit}.h, the system call tables of x86-64 and arm64 up to 6.18.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_LD, _AND, _JEQ, _JGE, _JSET, _RET = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_KILL, _ERRNO, _NOTIFY, _ALLOW = 0x80000000, 0x00050000, 0x7FC00000, 0x7FFF0000
_NUMBER, _ARCH, _ARGS = 0, 4, 16
_NEW_NAMESPACES = 0x7E020080  # CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET, TIME
_CUT = 0o1000  # O_TRUNC
_HUGE_PAGES = 0x40000  # MAP_HUGETLB: memory that no process is said to have
_LAST_KNOWN = 469  # file_setattr; what is newer was not looked at
Code = tuple[int, int, int, int]


@dataclass(frozen=True, kw_only=True)
class _Machine:
    arch: int
    calls: dict[str, int]


# name: x86-64, arm64 (0: there is none)
_CALLS = {
    # sockets; what needs none is a pair of the program's own, which speaks with nobody else and carries no descriptors
    "socket": (41, 198), "connect": (42, 203), "accept": (43, 202), "bind": (49, 200), "listen": (50, 201),
    "accept4": (288, 242), "sendmsg": (46, 211), "sendmmsg": (307, 269),
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "move_pages": (279, 239),
    "migrate_pages": (256, 238), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "swapon": (167, 224), "swapoff": (168, 225),
    "statmount": (457, 457), "listmount": (458, 458),
    # kernel objects that outlive a program, or hold memory that nobody counts
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193),
    "semtimedop": (220, 192), "semctl": (66, 191), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "inotify_init": (253, 0), "inotify_init1": (294, 26),  # it also tells when a folder is being weighed
    # ways around this filter, and large kernel interfaces
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "seccomp": (317, 277),
    "fanotify_init": (300, 262), "modify_ldt": (154, 0), "lookup_dcookie": (212, 18),
    # the machine
    "reboot": (169, 142), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "acct": (163, 89), "settimeofday": (164, 170),
    "adjtimex": (159, 171), "clock_settime": (227, 112), "clock_adjtime": (305, 266), "sethostname": (170, 161),
    "setdomainname": (171, 162), "syslog": (103, 116), "vhangup": (153, 58), "iopl": (172, 0), "ioperm": (173, 0),
    "ioprio_set": (251, 30), "nfsservctl": (180, 42), "personality": (135, 92),
}  # fmt: skip
_NOTHING = {
    "chmod": (90, 0), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, 0),
    "fchown": (93, 55), "lchown": (94, 0), "fchownat": (260, 54), "utime": (132, 0), "utimes": (235, 0),
    "futimesat": (261, 0), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "setxattrat": (463, 463),
    "removexattrat": (466, 466), "file_setattr": (469, 469), "sync": (162, 81), "syncfs": (306, 267),
}  # fmt: skip
_OTHERS = {
    "clone": (56, 220), "clone3": (435, 435), "fork": (57, 0), "vfork": (58, 0), "socketpair": (53, 199),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "prlimit64": (302, 261), "prctl": (157, 167),
    "setpriority": (141, 140), "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "fcntl": (72, 25), "ioctl": (16, 29),
    "truncate": (76, 45), "open": (2, 0), "openat": (257, 56), "openat2": (437, 437), "sendto": (44, 206),
    "mmap": (9, 222), "fallocate": (285, 47),
}  # fmt: skip
_TABLE = _CALLS | _NOTHING | _OTHERS
_ARCHES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_PR_DENIED = (1, 4, 22, 59)  # SET_PDEATHSIG, SET_DUMPABLE, SET_SECCOMP, SYSCALL_USER_DISPATCH: how its end is sure
_FCNTL_DENIED = (8, 10, 15, 1024, 1026)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: a signal to anybody; F_SETLEASE, F_NOTIFY
_IOCTL_DENIED = (0x5412, 0x541C, 0x8901, 0x8902)  # TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP


def is_supported_machine(machine: str) -> bool:
    """Return whether there is a filter for this kind of machine (`os.uname().machine`)."""
    return machine in _ARCHES


def build_fork_filter(machine: str) -> bytes:
    """Return the filter that asks its listener about each new process or thread, and about nothing else."""
    column, _ = _ARCHES[machine]
    code = _head(machine)
    for name in ("clone", "fork", "vfork"):
        if number := _TABLE[name][column]:
            code += [(_JEQ, 0, 1, number), (_RET, 0, 0, _NOTIFY)]
    return _packed(code)


def build_filter(machine: str, *, pid: int = 0, truncate: bool = True) -> bytes:
    """Return the filter as an array of `struct sock_filter`.

    Parameters
    ----------
    pid
        Not 0: signals go to this process alone, for want of another layer that keeps them inside.
    truncate
        Whether a file may be cut by its path, or by opening it to be read; no where nothing else keeps that inside.
    """
    column, _ = _ARCHES[machine]
    calls = {name: numbers[column] for name, numbers in _TABLE.items() if numbers[column]}
    code = _head(machine)
    code += [(_JGE, 0, 1, _LAST_KNOWN + 1), _error(errno.ENOSYS)]  # x32's numbers, too
    for name in (*_CALLS, *_NOTHING):
        if name in calls:
            result = _error(errno.EPERM) if name in _CALLS else (_RET, 0, 0, _ERRNO)
            code += [(_JEQ, 0, 1, calls[name]), result]
    for name, body in _asked(pid=pid, truncate=truncate):
        if name in calls:
            code += [(_JEQ, 0, len(body), calls[name]), *body]
    return _packed(code)


def _head(machine: str) -> list[Code]:
    """Return what every filter begins with: the number of the call, of this kind of machine."""
    return [(_LD, 0, 0, _ARCH), (_JEQ, 1, 0, _ARCHES[machine][1]), (_RET, 0, 0, _KILL), (_LD, 0, 0, _NUMBER)]


def _packed(code: list[Code]) -> bytes:
    return b"".join(struct.pack("=HBBI", *one) for one in [*code, (_RET, 0, 0, _ALLOW)])


def _asked(*, pid: int, truncate: bool) -> Iterator[tuple[str, list[Code]]]:
    """Yield the calls that depend on their arguments or on what else stands, with what is to be done."""
    allow, no = (_RET, 0, 0, _ALLOW), _error(errno.EPERM)
    yield "clone", [_arg(0), (_JSET, 0, 1, _NEW_NAMESPACES), no, allow]
    yield "clone3", [_error(errno.ENOSYS)]  # its flags lie in memory; the C library then takes clone
    yield "socketpair", [_arg(0), (_JEQ, 1, 0, 1), no, allow]
    yield "sendto", [_arg(4), (_JEQ, 0, 2, 0), _arg(4, upper=True), (_JEQ, 1, 0, 0), no, allow]  # to no address
    yield "mmap", [_arg(3), (_JSET, 0, 1, _HUGE_PAGES), _error(errno.ENOMEM), allow]
    yield "fallocate", [_error(errno.EOPNOTSUPP)]  # it fills a disk between two looks; the C library writes instead
    for name in ("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"):
        yield name, [_arg(0), (_JEQ, 1, 0, 0), no, allow]
    yield "setpriority", [_arg(0), (_JEQ, 0, 3, 0), _arg(1), (_JEQ, 0, 1, 0), allow, no]
    for name, denied, index in (("prctl", _PR_DENIED, 0), ("fcntl", _FCNTL_DENIED, 1), ("ioctl", _IOCTL_DENIED, 1)):
        yield name, [_arg(index), *(code for one in denied for code in ((_JEQ, 0, 1, one), no)), allow]
    if pid:
        for name in ("kill", "tgkill"):
            yield name, [_arg(0), (_JEQ, 0, 1, pid), allow, no]
        yield "tkill", [no]
    if not truncate:
        yield "truncate", [no]
        for name, index in (("open", 1), ("openat", 2)):  # for reading alone, or for neither, which is 3
            cuts = [(_JSET, 0, 4, _CUT), (_AND, 0, 0, 3), (_JEQ, 2, 0, 1), (_JEQ, 1, 0, 2)]
            yield name, [_arg(index), *cuts, no, allow]
        yield "openat2", [_error(errno.ENOSYS)]  # its flags lie in memory; the C library takes openat


def _arg(index: int, *, upper: bool = False) -> Code:
    return _LD, 0, 0, _ARGS + 8 * index + 4 * upper  # a half; both kinds of machine are little-endian


def _error(number: int) -> Code:
    return _RET, 0, 0, _ERRNO | number
