"""What files a program sees: Landlock decides what it reads and writes; `/tmp` and `/dev/shm` are its own if possible.

Every function raises OSError with the kernel's number and the name of the call.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

from rlbox.system.libc import LIBC, check_result, prctl, syscall

SYSTEM_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/localtime",
                "/etc/alternatives")  # fmt: skip
"""What every program may read, beside its interpreter. Not `/proc`, `/sys`, `/etc`, homes or data disks."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
SHARED_FOLDERS = ("/dev/shm", "/tmp")  # noqa: S108 a program gets its own, or none

# ------------------------------------------------------------------------------------------------------------ Landlock
# Source: Linux include/uapi/linux/landlock.h. The numbers of the calls are the same on every machine.

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RIGHTS_BY_VERSION = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
"""Rights to files that a version brought: 13 at first, then REFER, TRUNCATE and IOCTL_DEV."""
_READ = 1 | 4 | 8  # EXECUTE, READ_FILE, READ_DIR
_OF_FILES = 1 | 2 | 4 | 1 << 14 | 1 << 15  # the rights that a rule for a file, and not a folder, may hold
_MAKE_DEVICES = 1 << 6 | 1 << 11  # MAKE_CHAR, MAKE_BLOCK
TRUNCATE_VERSION, SIGNALS_VERSION = 3, 6
"""Versions that govern truncation, and signals and abstract Unix sockets."""


def require_landlock_version() -> int:
    return syscall("landlock", _CREATE_RULESET, None, 0, 1)


def restrict_files(readable: Iterable[str], writable: Iterable[str], version: int) -> None:
    """Confine this process and its children to files below these paths, for good; its signals too from version 6 on."""
    handled = sum(rights for since, rights in _RIGHTS_BY_VERSION.items() if since <= version)
    # rights to files; TCP bind and connect (version 4); abstract Unix sockets and signals (version 6)
    attributes = struct.pack("=QQQ", handled, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = syscall("landlock_create_ruleset", _CREATE_RULESET, attributes, len(attributes), 0)
    for path in readable:
        _allow_below(ruleset, path, _READ)
    for path in writable:
        _allow_below(ruleset, path, handled & ~_MAKE_DEVICES)
    for path in _DEVICES:
        _allow_below(ruleset, path, handled & (2 | 4 | 1 << 14))  # WRITE_FILE, READ_FILE, TRUNCATE
    prctl("no new privileges", 38, 1)
    syscall("landlock_restrict_self", _RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow_below(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # this machine has no such path
    try:
        rights &= -1 if os.path.isdir(path) else _OF_FILES
        syscall("landlock_add_rule", _ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, fd), 0)
    finally:
        os.close(fd)


# ---------------------------------------------------------------------------------------------------------- namespaces

_NEW_USER, _NEW_MOUNT = 0x10000000, 0x00020000
_RECURSIVE, _PRIVATE, _NO_SETUID, _NO_DEVICES, _DETACH = 0x4000, 1 << 18, 2, 4, 2
_INODES = 20_000
_USER = 1000
"""The only user inside."""


def require_outside_tmp_and_shm(paths: Iterable[str]) -> None:
    tops = tuple(f"{folder}/" for folder in SHARED_FOLDERS)
    if hidden := [path for path in paths if f"{os.path.realpath(path)}/".startswith(tops)]:
        raise OSError(f"{hidden[0]} lies in a folder that programs have to themselves")


def enter_user_and_mount_namespace() -> None:
    """Give this process and its children mounts of their own; OSError as in a container without privileges."""
    user, group = os.geteuid(), os.getegid()
    check_result("unshare", int(LIBC.unshare(_NEW_USER | _NEW_MOUNT)))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{_USER} {user} 1"), ("gid_map", f"{_USER} {group} 1")):
        Path(f"/proc/self/{name}").write_text(text)
    check_result("make mounts private", int(LIBC.mount(None, b"/", None, _RECURSIVE | _PRIVATE, None)))


def mount_private_tmp_and_shm(size_mb: int) -> None:
    options = f"size={size_mb}m,nr_inodes={_INODES},mode=755".encode()
    for path in SHARED_FOLDERS:
        result = LIBC.mount(b"sandbox", path.encode(), b"tmpfs", _NO_SETUID | _NO_DEVICES, options)
        check_result(f"mount {path}", int(result))


def unmount_private_tmp_and_shm() -> None:
    for path in SHARED_FOLDERS:
        check_result(f"unmount {path}", int(LIBC.umount2(path.encode(), _DETACH)))
