"""The filter of system calls that every program runs under: a fixed list of refused calls, as BPF.

It refuses what reaches beyond the program's own processes and folder and what Landlock does not govern. All else is
allowed: interpreters and compilers need some 150 calls, which differ between C libraries. A call that is newer than
this list is unknown to the program (ENOSYS). Sources: Linux include/uapi/linux/{seccomp,filter,audit}.h and the system
call tables of x86-64 and arm64 up to 6.18.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import struct

from rlbox.system.libc import prctl, syscall

ListenerFd = int
Instruction = tuple[int, int, int, int]
"""Operation, jump if true, jump if false, operand: `struct sock_filter`."""
Numbers = dict[str, tuple[int, int]]
"""Name of a call to its number on x86-64 and on arm64; 0: the machine has no such call."""

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine to the column in the tables and to AUDIT_ARCH."""
_LAST_CALL = 469
"""Number of file_setattr, the newest call that was looked at."""

# Refused with EPERM.
_SOCKETS: Numbers = {  # network and Unix sockets; a socketpair needs none of these (sendmsg would send descriptors)
    "socket": (41, 198), "connect": (42, 203), "accept": (43, 202), "bind": (49, 200), "listen": (50, 201),
    "accept4": (288, 242), "sendmsg": (46, 211), "sendmmsg": (307, 269),
}  # fmt: skip
_PROCESSES: Numbers = {  # memory, descriptors and signals of other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "move_pages": (279, 239),
    "migrate_pages": (256, 238), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
}  # fmt: skip
_MOUNTS: Numbers = {  # mounts, namespaces, and files by handle, which Landlock does not see
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "swapon": (167, 224), "swapoff": (168, 225),
    "statmount": (457, 457), "listmount": (458, 458),
}  # fmt: skip
_OBJECTS: Numbers = {  # kernel objects that outlive a program, or memory that no limit counts
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193),
    "semtimedop": (220, 192), "semctl": (66, 191), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "inotify_init": (253, 0), "inotify_init1": (294, 26),  # tells when the folder is measured
}  # fmt: skip
_INTERFACES: Numbers = {  # ways around a filter, and large interfaces with a history of holes
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "seccomp": (317, 277),
    "fanotify_init": (300, 262), "modify_ldt": (154, 0), "lookup_dcookie": (212, 18),
}  # fmt: skip
_MACHINE: Numbers = {  # clock, name, modules and power of the machine; all need privileges that a program has not
    "reboot": (169, 142), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "acct": (163, 89), "settimeofday": (164, 170),
    "adjtimex": (159, 171), "clock_settime": (227, 112), "clock_adjtime": (305, 266), "sethostname": (170, 161),
    "setdomainname": (171, 162), "syslog": (103, 116), "vhangup": (153, 58), "iopl": (172, 0), "ioperm": (173, 0),
    "ioprio_set": (251, 30), "nfsservctl": (180, 42), "personality": (135, 92),
}  # fmt: skip
_REFUSED = _SOCKETS | _PROCESSES | _MOUNTS | _OBJECTS | _INTERFACES | _MACHINE

# Return 0 and do nothing: honest programs call them, and an error would end those.
_METADATA: Numbers = {  # mode, owner, times and attributes of files, for which Landlock has no rights
    "chmod": (90, 0), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, 0),
    "fchown": (93, 55), "lchown": (94, 0), "fchownat": (260, 54), "utime": (132, 0), "utimes": (235, 0),
    "futimesat": (261, 0), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "setxattrat": (463, 463),
    "removexattrat": (466, 466), "file_setattr": (469, 469),
}  # fmt: skip
_SESSIONS: Numbers = {  # so all processes of a program stay in one group, which one signal ends without a race
    "setsid": (112, 157), "setpgid": (109, 154),
}  # fmt: skip
_FLUSHES: Numbers = {"sync": (162, 81), "syncfs": (306, 267)}  # would wait for every disk of the machine
_IGNORED = _METADATA | _SESSIONS | _FLUSHES

# Depend on their arguments.
_CONDITIONAL: Numbers = {
    "clone": (56, 220), "clone3": (435, 435), "socketpair": (53, 199), "sendto": (44, 206), "mmap": (9, 222),
    "fallocate": (285, 47), "prlimit64": (302, 261), "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
    "setpriority": (141, 140), "prctl": (157, 167), "fcntl": (72, 25), "ioctl": (16, 29), "kill": (62, 129),
    "tkill": (200, 130), "tgkill": (234, 131), "truncate": (76, 45), "open": (2, 0), "openat": (257, 56),
    "openat2": (437, 437),
}  # fmt: skip
_FORKS: Numbers = {"fork": (57, 0), "vfork": (58, 0)}  # allowed, and asked for as clone is
_INSTALL = {"x86_64": 317, "aarch64": 277}  # seccomp(2)


def is_supported_machine(machine: str) -> bool:
    return machine in _ARCHITECTURES


def install_filter(bpf_code: bytes) -> None:
    _install(bpf_code, flags=0)


def install_notify_filter(bpf_code: bytes) -> ListenerFd:
    """Put this process and all its children under a filter that asks a listener; raises OSError."""
    return _install(bpf_code, flags=8)  # SECCOMP_FILTER_FLAG_NEW_LISTENER


def _install(code: bytes, flags: int) -> int:
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("=HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    prctl("no new privileges", 38, 1)
    return syscall("seccomp", _INSTALL[os.uname().machine], 1, flags, program)


def receive_fork_request(listener: ListenerFd) -> int:
    """Return the id of a process or thread that waits to be made; raises OSError where there is none any more."""
    notification = bytearray(80)
    fcntl.ioctl(listener, 0xC0502100, notification, True)
    return int(struct.unpack_from("=Q", notification)[0])


def answer_fork(listener: ListenerFd, notification_id: int, *, allow: bool) -> None:
    """Let the process or thread be made (SECCOMP_USER_NOTIF_FLAG_CONTINUE), or fail with EAGAIN."""
    answer = struct.pack("=QqiI", notification_id, 0, *((0, 1) if allow else (-errno.EAGAIN, 0)))
    fcntl.ioctl(listener, 0xC0182101, bytearray(answer), True)


@functools.cache
def build_fork_notify_filter(machine: str) -> bytes:
    """Return the filter that asks its listener about each new process and thread, and about nothing else."""
    column, architecture = _ARCHITECTURES[machine]
    code = [(_LOAD, 0, 0, 4), (_IF_EQUAL, 1, 0, architecture), _KILL, (_LOAD, 0, 0, 0)]
    for number in (_CONDITIONAL["clone"][column], *(numbers[column] for numbers in _FORKS.values())):
        if number:
            code += [(_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, 0x7FC00000)]
    return _pack([*code, _ALLOW])


@functools.cache
def build_filter(machine: str, *, signal_pid: int | None = None, allow_truncate: bool = True) -> bytes:
    """Return the filter as an array of `struct sock_filter`.

    Parameters
    ----------
    signal_pid
        Only this process can be sent signals, where Landlock does not keep them inside (before version 6).
    allow_truncate
        False where Landlock does not govern truncation (before version 3).
    """
    column, architecture = _ARCHITECTURES[machine]
    code = [
        (_LOAD, 0, 0, 4), (_IF_EQUAL, 1, 0, architecture), _KILL,  # a call of another machine, such as 32-bit x86
        (_LOAD, 0, 0, 0), (_IF_AT_LEAST, 0, 1, _LAST_CALL + 1), _refuse(errno.ENOSYS),  # and x32's numbers
    ]  # fmt: skip
    rules = {name: [_EPERM] for name in _REFUSED} | {name: [_refuse(0)] for name in _IGNORED}
    for name, body in (rules | _build_conditional_rules(signal_pid, allow_truncate)).items():
        if number := (_REFUSED | _IGNORED | _CONDITIONAL)[name][column]:
            code += [(_IF_EQUAL, 0, len(body), number), *body]
    return _pack([*code, _ALLOW])


def _pack(code: list[Instruction]) -> bytes:
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


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


_LOAD, _AND, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW: Instruction = (_RETURN, 0, 0, 0x7FFF0000)
_KILL: Instruction = (_RETURN, 0, 0, 0x80000000)


def _refuse(error: int) -> Instruction:
    """Return what ends a call with an error of the kernel's, or without one and without an effect (0)."""
    return _RETURN, 0, 0, 0x00050000 | error


_EPERM = _refuse(errno.EPERM)


def _load_argument(index: int, *, upper_half: bool = False) -> Instruction:
    return _LOAD, 0, 0, 16 + 8 * index + 4 * upper_half  # both kinds of machine are little-endian


def _refuse_values(index: int, *values: int) -> list[Instruction]:
    checks = [step for value in values for step in ((_IF_EQUAL, 0, 1, value), _EPERM)]
    return [_load_argument(index), *checks, _ALLOW]
