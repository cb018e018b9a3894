"""The calls of the kernel that Python has no words for: Landlock, seccomp, mounts, namespaces, capabilities.

Every function raises OSError with the kernel's number and the name of the call.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Iterable

from rlbox.system.libc import LIBC, check_result, prctl, syscall

_SECCOMP = {"x86_64": 317, "aarch64": 277}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_UNSHARE = {"x86_64": 272, "aarch64": 97}
_MACHINE = os.uname().machine

NEW_USER, NEW_PID, NEW_NET, NEW_MOUNT = 0x10000000, 0x20000000, 0x40000000, 0x00020000
NEW_IPC, NEW_UTS, NEW_CGROUP = 0x08000000, 0x04000000, 0x02000000
_PDEATHSIG, _NO_NEW_PRIVS, _BOUNDING_DROP, _AMBIENT, _RAISE = 1, 38, 24, 47, 2
_MOUNTS, _BOUNDS = 1 << 21, 1 << 8  # CAP_SYS_ADMIN, CAP_SETPCAP
_BIND, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 0x1000, 0x4000, 1 << 18, 2
_LANDLOCK, _MOUNT_SETATTR = 444, 442  # the same on every machine, as all later ones
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_RECURSIVE = 0x8000
_ATTR_READ_ONLY = 0x1 | 0x2 | 0x4  # and no setuid, no devices
_READ = 1 | 4 | 8  # execute, read a file, list a folder
_OF_A_FILE = 1 | 2 | 4 | 1 << 14 | 1 << 15
_RIGHTS = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}  # rights of files by the version that brought them
_RECV, _SEND, _NOTIFY_BYTES = 0xC0502100, 0xC0182101, 80


def die_with_parent() -> None:
    """End this process when the one that forked it ends."""
    prctl("die with parent", _PDEATHSIG, 9)


def drop_privileges() -> None:
    """Give up every capability, for what is carried out later too."""
    _bound_privileges()
    header, data = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    syscall("drop capabilities", _CAPSET[_MACHINE], header, data)


def keep_mounting() -> None:
    """Give up every capability but the one to make mounts and namespaces, for what is carried out next."""
    header, both = struct.pack("=Ii", 0x20080522, 0), _MOUNTS | _BOUNDS
    syscall("keep a capability", _CAPSET[_MACHINE], header, struct.pack("=6I", both, both, _MOUNTS, 0, 0, 0))
    prctl("keep a capability", _AMBIENT, _RAISE, _MOUNTS.bit_length() - 1)
    _bound_privileges()  # what only this process has is gone when it carries something out


def _bound_privileges() -> None:
    prctl("no new privileges", _NO_NEW_PRIVS, 1)
    for number in range(64):
        if LIBC.prctl(_BOUNDING_DROP, ctypes.c_ulong(number), 0, 0, 0) < 0:
            break  # past the last one, or not ours to drop: without new privileges it is lost with the others


def call_numbers() -> dict[str, int]:
    """Return the numbers of system calls that differ between machines, for who has not this module."""
    return {"unshare": _UNSHARE[_MACHINE], "capset": _CAPSET[_MACHINE], "seccomp": _SECCOMP[_MACHINE]}


# ---------------------------------------------------------------------------------------------- namespaces and mounts


def unshare(flags: int) -> None:
    """Give this process, and for processes its children, namespaces of their own."""
    check_result("unshare", int(LIBC.unshare(flags)))


def mount_tmpfs(path: str, options: str) -> None:
    """Mount an empty file system in memory."""
    check_result("mount tmpfs", int(LIBC.mount(b"sandbox", os.fsencode(path), b"tmpfs", 2 | 4, options.encode())))


def open_tmpfs(**options: str) -> int:
    """Return an empty file system in memory that is mounted nowhere yet, as a handle of its first folder."""
    opened = syscall("open tmpfs", _FSOPEN, b"tmpfs", 1)
    try:
        for name, value in {"source": "sandbox", **options}.items():
            syscall(f"set {name} of tmpfs", _FSCONFIG, opened, 1, name.encode(), value.encode(), 0)
        syscall("make tmpfs", _FSCONFIG, opened, 6, None, None, 0)
        return syscall("mount tmpfs", _FSMOUNT, opened, 1, 2 | 4)
    finally:
        os.close(opened)


def unmount(path: str) -> None:
    """Take away what is mounted at `path`, and below it."""
    check_result("unmount", int(LIBC.umount2(os.fsencode(path), _MNT_DETACH)))


def make_private(path: str) -> None:
    """Keep mounts below `path` from other namespaces."""
    check_result("make mounts private", int(LIBC.mount(None, os.fsencode(path), None, _MS_REC | _MS_PRIVATE, None)))


def bind_read_only(source: str, path: str) -> None:
    """Let `source` be seen at `path`, with all that is mounted below it, and nothing in it be changed."""
    words = os.fsencode(source), os.fsencode(path)
    check_result(f"bind {source}", int(LIBC.mount(*words, None, _BIND | _MS_REC, None)))
    make_read_only(path, below=True)


def make_read_only(path: str, *, below: bool = False) -> None:
    """Let nothing be changed in what is mounted at `path`, and in what is mounted below it if so."""
    wanted = struct.pack("=QQQQ", _ATTR_READ_ONLY, 0, 0, 0)
    flags = _RECURSIVE if below else 0
    syscall(f"make {path} read-only", _MOUNT_SETATTR, -100, os.fsencode(path), flags, wanted, len(wanted))


def bind(path: str, goal: str) -> None:
    """Let one device, or one folder, be seen at `goal`, as it is."""
    check_result(f"bind {path}", int(LIBC.mount(os.fsencode(path), os.fsencode(goal), None, _BIND, None)))


def enter_root(path: str) -> None:
    """Make `path`, a mount, the root of this process' own mount namespace; nothing else is left in it."""
    unshare(NEW_MOUNT)
    os.chdir(path)
    syscall("pivot_root", _PIVOT_ROOT[_MACHINE], b".", b".")
    check_result("leave the old root", int(LIBC.umount2(b".", _MNT_DETACH)))
    os.chdir("/")


# ------------------------------------------------------------------------------------------------------------ landlock


def landlock_version() -> int:
    """Return the version of Landlock here."""
    return syscall("landlock", _LANDLOCK, None, 0, 1)


def landlock(read: Iterable[str], write: Iterable[str], devices: Iterable[str]) -> None:
    """Confine this process to files below `read` and `write` and some devices; to signals among its own, too.

    Of the network nothing is left where Landlock knows it (version 4); signals and abstract sockets from version 6 on.
    """
    attributes = landlock_attributes()
    rules = syscall("landlock_create_ruleset", _LANDLOCK, attributes, len(attributes), 0)
    for path, rights in landlock_rights(read, write, devices):
        _allow(rules, path, rights)
    prctl("no new privileges", _NO_NEW_PRIVS, 1)
    syscall("landlock_restrict_self", _LANDLOCK + 2, rules, 0)
    os.close(rules)


def landlock_attributes() -> bytes:
    """Return what a set of rules governs here, as the kernel takes it."""
    version = landlock_version()
    return struct.pack("=QQQ", _every(version), 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]


def landlock_rights(read: Iterable[str], write: Iterable[str], devices: Iterable[str]) -> list[tuple[str, int]]:
    """Return what is allowed below each path that is there."""
    version = landlock_version()
    every = _every(version)
    opening = 2 | 4 | (1 << 14 if version >= 3 else 0)
    kinds = ((read, _READ), (write, every & ~(64 | 2048)), (devices, opening))
    found = [(path, rights & every) for paths, rights in kinds for path in paths if os.path.exists(path)]
    return [(path, rights if os.path.isdir(path) else rights & _OF_A_FILE) for path, rights in found]


def _every(version: int) -> int:
    return sum(bits for since, bits in _RIGHTS.items() if since <= version)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        syscall("landlock_add_rule", _LANDLOCK + 1, rules, 1, struct.pack("=Qi", rights, beneath), 0)
    finally:
        os.close(beneath)


# ------------------------------------------------------------------------------------------------------------- seccomp


def install_filter(code: bytes, *, listen: bool) -> int:
    """Put this process and its children under a filter; return the listener, or -1 where none was asked for."""
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("=HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    prctl("no new privileges", _NO_NEW_PRIVS, 1)
    found = syscall("seccomp", _SECCOMP[_MACHINE], 1, 8 if listen else 0, program)
    return found if listen else -1


def next_fork(listener: int) -> int:
    """Return the id of one process or thread that wants to be born.

    Raises
    ------
    OSError
        It is gone, or there is none.
    """
    asked = bytearray(_NOTIFY_BYTES)
    fcntl.ioctl(listener, _RECV, asked, True)
    return int(struct.unpack_from("=Q", asked)[0])


def answer_fork(listener: int, notification_id: int, *, allowed: bool) -> None:
    """Let what asked be born, or say that there is no room."""
    answer = bytearray(struct.pack("=QqiI", notification_id, 0, 0 if allowed else -11, 1 if allowed else 0))
    fcntl.ioctl(listener, _SEND, answer, True)
