"""Where the bytes of a file come from, as the kernel knows it: the birth of its inode, and writes into it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
import tempfile
from pathlib import Path
from typing import NamedTuple

from rlbox.system.libc import LIBC

Inode = tuple[int, int, int]
"""Device, number and birth (ns since 1970, 0 where it is not kept); a number alone is given to another file again."""

_STATX_BTIME = 0x800
_STATX_BYTES = 256
_MASK_AT, _BTIME_AT = 0, 80
_AT_FDCWD = -100
_IN_MODIFY, _IN_ONESHOT = 0x2, 0x80000000
_EVENT = struct.Struct("iIII")
_EVENTS_BYTES = 1 << 16


def read_inode(path: Path) -> Inode:
    facts = path.stat()
    return facts.st_dev, facts.st_ino, read_birth_ns(path)


def read_birth_ns(path: Path) -> int:
    """Return when the inode at `path` was made, by the clock of its file system; 0 where that is not kept."""
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    statx = getattr(LIBC, "statx", None)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, answer):
        return 0
    (told,) = struct.unpack_from("I", answer, _MASK_AT)
    seconds, nanoseconds = struct.unpack_from("qI", answer, _BTIME_AT)
    return seconds * 10**9 + nanoseconds if told & _STATX_BTIME else 0


class FileSystemClock(NamedTuple):
    """The device of new files in a directory, and the time of their file system in ns since 1970, 0 if unknown."""

    device: int
    now_ns: int


def read_file_system_clock(folder: Path) -> FileSystemClock:
    """Create a file in a directory for a moment and return when it was born; `OSError` when the directory is gone.

    A file is needed since layered file systems give the directory itself another device.
    """
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=folder, prefix=".rlbox-clock-") as file:
        return FileSystemClock(os.fstat(file.fileno()).st_dev, read_birth_ns(Path(file.name)))
    return FileSystemClock(folder.stat().st_dev, 0)


class WriteWatcher:
    """Notes which of the watched files are written into; who only touches one, or its mode, does not write.

    What another machine writes into a shared file system is not seen.
    """

    def __init__(self) -> None:
        self._queue = LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watched: dict[int, Inode] = {}
        self._written: set[Inode] = set()

    def watch(self, path: Path, inode: Inode) -> None:
        """Watch the file at `path`, which is `inode`; one watch too many for this machine is left out."""
        if self._queue >= 0:
            number = LIBC.inotify_add_watch(self._queue, os.fsencode(path), _IN_MODIFY | _IN_ONESHOT)
            if number >= 0:
                self._watched[number] = inode

    def written(self) -> set[Inode]:
        while self._queue >= 0:
            try:
                events = os.read(self._queue, _EVENTS_BYTES)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EINTR):
                    raise
                break
            at = 0
            while at < len(events):
                number, mask, _, length = _EVENT.unpack_from(events, at)
                if mask & _IN_MODIFY and number in self._watched:
                    self._written.add(self._watched[number])
                at += _EVENT.size + length
        return self._written

    def close(self) -> None:
        if self._queue >= 0:
            os.close(self._queue)
            self._queue = -1
