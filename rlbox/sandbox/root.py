"""A file system of their own for programs: what they may read at its own place, and a folder in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rlbox.sandbox import kernel

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_ALIASES = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")  # of folders below /usr, as a rule
SYSTEM = ("/usr", *_ALIASES, "/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")
"""What every program may read, beside its interpreter."""
PROGRAMS = str(Path(__file__).parent / "programs")
"""What runs behind the walls with the stack's interpreter; programs may read it."""
_INSIDE = 1000  # the only user there
_INODES = 20_000
_WRITTEN = ("program", "tmp", "dev/shm")


def leave_namespaces() -> None:
    """Give this process namespaces of its own; processes it forks from now on are in a process namespace of their own.

    Raises
    ------
    OSError
        The kernel, or a filter around this process, refuses.
    """
    user, group = os.geteuid(), os.getegid()
    others = kernel.NEW_PID | kernel.NEW_NET | kernel.NEW_IPC | kernel.NEW_UTS | kernel.NEW_CGROUP
    kernel.unshare(kernel.NEW_USER | kernel.NEW_MOUNT | others)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{_INSIDE} {user} 1"), ("gid_map", f"{_INSIDE} {group} 1")):
        Path(f"/proc/self/{name}").write_text(text)
    kernel.make_private("/")


def make_root(root: Path, read: Iterable[str], disk_mb: int) -> Path:
    """Fill `root`, which must be an empty folder, and return the folder of the programs, as seen from here.

    They may write two more that are there by custom, and nothing else: one program must not lay files under another's
    feet, also where Landlock is missing.
    """
    root.mkdir()
    kernel.mount_tmpfs(str(root), ",".join(f"{name}={value}" for name, value in _options(disk_mb).items()))
    kept = [root]
    for name in _WRITTEN:
        _bind_itself(root / name)
    for path in _once(read):
        goal = root / path.lstrip("/")
        if above := _first_below_written(path):
            kept.append(root / above)
            _bind_itself(kept[-1])
        goal.parent.mkdir(parents=True, exist_ok=True)
        if os.path.islink(path):
            goal.symlink_to(os.readlink(path))
            continue
        if os.path.isdir(path):
            goal.mkdir(exist_ok=True)
        else:
            goal.touch()
        kernel.bind_read_only(path, str(goal))
    for path in DEVICES:
        (root / path.lstrip("/")).touch()
        kernel.bind(path, f"{root}{path}")
    for folder in kept:
        kernel.make_read_only(str(folder))
    return root / _WRITTEN[0]


def fresh_folders(again: Iterable[str], disk_mb: int) -> int:
    """Return a handle of an empty file system in memory with what lies over the written folders of such a root.

    That is `program`, `tmp` and `shm`, with a folder for each of `again`.
    """
    handle = kernel.open_tmpfs(**_options(disk_mb))
    for name in _WRITTEN:
        os.mkdir(os.path.basename(name), dir_fd=handle)
    for path in again:
        os.mkdir("/".join(path.rsplit("/", 2)[1:]), dir_fd=handle)
    return handle


def shown_again(read: Iterable[str]) -> list[str]:
    """Return the folders in written ones that must be seen there, for what is read lies in them."""
    return sorted({f"/{above}" for above in map(_first_below_written, _once(read)) if above})


def _options(disk_mb: int) -> dict[str, str]:
    return {"size": f"{disk_mb}m", "nr_inodes": str(_INODES), "mode": "755"}


def _bind_itself(folder: Path) -> None:
    """Make a folder, and a mount of it, which cannot be moved away; before anything is mounted in it."""
    if not folder.exists():
        folder.mkdir(parents=True)
        kernel.bind(str(folder), str(folder))


def _first_below_written(path: str) -> str:
    """Return the first folder on the way to what is read that would lie in one that programs write; empty: none."""
    for name in _WRITTEN:
        first, deeper, _ = path.removeprefix(f"/{name}/").partition("/")
        if path.startswith(f"/{name}/") and deeper:
            return f"{name}/{first}"
    return ""


def _once(read: Iterable[str]) -> list[str]:
    """Return what is there, without what lies below another of them."""
    kept: list[str] = []
    for path in sorted({os.path.normpath(path) for path in read if os.path.lexists(path)}):
        if not any(path.startswith(f"{above}/") for above in kept):
            kept.append(path)
    return kept
