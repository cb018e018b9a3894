"""A program's folder: filled before it starts, measured while it runs, read afterwards.

What lies in it is the program's: nothing is opened through a link, and no depth of folders or mode of theirs matters.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from rlbox.system.process_table import read_text
from rlbox.system.safe_files import read_bytes

_MAX_ENTRIES = 10_000
"""Files and folders that a program may make; more count as a full folder."""


def write_files(folder: Path, content_by_checked_path: Mapping[str, bytes]) -> None:
    """Write files whose names are plain paths below `folder`, which nothing has run in yet."""
    for name, content in content_by_checked_path.items():
        path = os.path.join(folder, name)
        if "/" in name:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb", buffering=0) as stream:
            os.fchmod(stream.fileno(), 0o755)
            rest = memoryview(content)
            while rest:
                rest = rest[stream.write(rest) :]


def read_files_or_omit(folder: Path, names: Iterable[str], max_total_bytes: int) -> dict[str, bytes]:
    """Return what a program left under `names`: regular files, not through links, `max_total_bytes` bytes together.

    `folder` is a path without links.
    """
    contents: dict[str, bytes] = {}
    for name in names:
        with contextlib.suppress(OSError):
            contents[name] = read_bytes(folder / name, max_total_bytes)
            max_total_bytes -= len(contents[name])
    return contents


def measure_bytes(folder: Path, pids: Iterable[int], limit: int) -> int:
    """Return the bytes on disk below `folder`, with deleted files that these processes hold open.

    A number above `limit` also stands for too many entries, and for a folder or a process that hides what it holds:
    a deleted file that is mapped and not open has a size that nobody can read.
    """
    total = entries = 0
    try:
        for _, folders, files, fd in os.fwalk(folder, onerror=_raise_hidden):
            entries += len(folders) + len(files)
            for name in (*folders, *files):
                with contextlib.suppress(FileNotFoundError):
                    total += os.stat(name, dir_fd=fd, follow_symlinks=False).st_blocks * 512
            if entries > _MAX_ENTRIES or total > limit:
                return limit + 1
        return total + sum(_measure_deleted(f"{folder}/", pids).values())
    except (PermissionError, RecursionError):
        return limit + 1


def _raise_hidden(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # it was removed meanwhile
        raise PermissionError(str(error)) from error


def _measure_deleted(folder: str, pids: Iterable[int]) -> dict[tuple[int, int], int]:
    """Return the bytes of deleted files that are open, by device and inode; PermissionError if some are hidden."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        inodes = set[int]()
        for thread in list_thread_dirs(pid):  # a thread may have descriptors that the others have not
            try:
                fds = os.listdir(f"{thread}/fd")
            except PermissionError:
                if read_text(f"{thread}/statm").startswith("0 "):
                    continue  # it is ending
                raise
            except OSError:
                continue
            for fd in fds:
                with contextlib.suppress(OSError):
                    status = os.stat(f"{thread}/fd/{fd}")
                    if stat.S_ISREG(status.st_mode) and not status.st_nlink:
                        sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
                        inodes.add(status.st_ino)
        if not _list_deleted_mappings(pid, folder) <= inodes:
            raise PermissionError(f"process {pid} maps a deleted file that is not open")
    return sizes


def _list_deleted_mappings(pid: int, folder: str) -> set[int]:
    """Return the inodes of deleted files of `folder` that a process maps."""
    maps = next(filter(None, (read_text(f"{thread}/maps") for thread in list_thread_dirs(pid))), "")
    rows = (line.split(maxsplit=5) for line in maps.splitlines())
    return {
        int(row[4]) for row in rows if len(row) == 6 and row[5].startswith(folder) and row[5].endswith(" (deleted)")
    }


def list_thread_dirs(pid: int) -> list[str]:
    """Return the folders of a process' threads in `/proc`; the first thread may have ended before the others."""
    try:
        return [f"/proc/{pid}/task/{thread}" for thread in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []
