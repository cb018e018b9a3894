"""Files below a node's data disk, whatever a program of a job has put in the way: no link is followed."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from rlbox.cluster.programs.node_wire import NodeFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlbox.cluster.programs.node_wire import Row

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LARGEST = 1 << 22
_SAMPLE = 1 << 16


class Beneath:
    """A folder, entered step by step from a disk that is there; each step is a folder of its own and no link."""

    def __init__(self, disk: str, parts: list[str], create: bool = False) -> None:
        if any(part in ("", ".", "..") or "/" in part for part in parts):
            raise NodeFailed(f"no such path: {'/'.join(parts)}")
        self._handles = [os.open(disk, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        try:
            for depth, part in enumerate(parts):
                if create:
                    self._make(part, 0o700 if depth else 0o1777)  # every user has a folder in the first
                self._handles.append(os.open(part, _FOLDER, dir_fd=self.handle))
        except OSError:
            self.close()
            raise

    @property
    def handle(self) -> int:
        """The innermost folder."""
        return self._handles[-1]

    def _make(self, part: str, mode: int) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, 0o700, dir_fd=self.handle)
            os.chmod(part, mode, dir_fd=self.handle)

    def close(self) -> None:
        """Let go of it."""
        for handle in self._handles:
            os.close(handle)
        self._handles = []

    def __enter__(self) -> Beneath:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


def write(disk: str, path: str, text: str, mode: int, owner: list[int]) -> None:
    """Write a file whole, its folders made; `owner` is user and group of all that is new, empty for this user."""
    *parts, name = path.split("/")
    with Beneath(disk, parts, create=True) as folder:
        part = f".{name}.{os.getpid()}"
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=folder.handle)
        try:
            os.write(handle, text.encode())
            os.fchmod(handle, mode)
            if owner:
                os.fchown(handle, owner[0], owner[1])
                os.fchown(folder.handle, owner[0], owner[1])
        finally:
            os.close(handle)
        os.rename(part, name, src_dir_fd=folder.handle, dst_dir_fd=folder.handle)


def read(disk: str, path: str) -> str:
    """Return the text of a small file, empty where there is none."""
    *parts, name = path.split("/")
    try:
        with Beneath(disk, parts) as folder:
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder.handle)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return ""
        return os.read(handle, _LARGEST).decode("utf-8", "replace")
    finally:
        os.close(handle)


def remove(disk: str, path: str) -> bool:
    """Remove a file, or a folder with all that is in it, and then each folder above it that is empty."""
    *parts, name = path.split("/")
    try:
        with Beneath(disk, parts) as folder:
            gone = _remove(folder.handle, name)
    except OSError:
        return False
    while parts:
        *parts, name = parts
        try:
            with Beneath(disk, parts) as folder:
                os.rmdir(name, dir_fd=folder.handle)
        except OSError:
            break
    return gone


def _remove(handle: int, name: str) -> bool:
    try:
        if not stat.S_ISDIR(os.lstat(name, dir_fd=handle).st_mode):
            os.unlink(name, dir_fd=handle)
            return True
        inner = os.open(name, _FOLDER, dir_fd=handle)
        try:
            for one in os.listdir(inner):
                _remove(inner, one)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=handle)
    except OSError:
        return False
    return True


def remove_empty(disk: str, path: str) -> None:
    """Remove the folders in a folder that hold nothing, and it, if it holds none then."""
    for name in names(disk, path):
        with contextlib.suppress(OSError), Beneath(disk, [path]) as folder:
            os.rmdir(name, dir_fd=folder.handle)
    with contextlib.suppress(OSError), Beneath(disk, []) as top:
        os.rmdir(path, dir_fd=top.handle)


def names(disk: str, path: str) -> list[str]:
    """Return the names in a folder, none where it is not there."""
    try:
        with Beneath(disk, [part for part in path.split("/") if part]) as folder:
            return sorted(os.listdir(folder.handle))
    except OSError:
        return []


def disk_facts(path: str) -> Row:
    """Return what a data disk is: whether it is there, its own, free, and whose."""
    facts: Row = {"path": path, "there": False}
    try:
        found, space = os.stat(path), os.statvfs(path)
    except OSError as error:
        facts["said"] = error.strerror or str(error)
        return facts
    facts.update(
        there=stat.S_ISDIR(found.st_mode),
        root=found.st_dev == os.stat("/").st_dev,
        free=space.f_bavail * space.f_frsize,
        size=space.f_blocks * space.f_frsize,
        inodes=space.f_favail,
        mode=stat.S_IMODE(found.st_mode),
        uid=found.st_uid,
        gid=found.st_gid,
        writable=os.access(path, os.W_OK | os.X_OK),
    )
    return facts


def print_of(path: str) -> Row:
    """Return what tells two copies of a file or folder apart: files, bytes, and a sum over names, sizes and samples.

    Of a large file its two ends and its middle are read.
    """
    import hashlib  # it loads OpenSSL, which hardly any question needs

    count, total, whole = 0, 0, hashlib.sha256()
    try:
        for name, full in _files(path):
            size = os.stat(full).st_size
            whole.update(f"{name} {size}\n".encode("utf-8", "surrogateescape"))
            with open(full, "rb") as file:
                for at in sorted({0, max(0, size // 2 - _SAMPLE), max(0, size - _SAMPLE)}):
                    file.seek(at)
                    whole.update(file.read(_SAMPLE))
            count, total = count + 1, total + size
    except OSError as error:
        return {"path": path, "there": False, "said": error.strerror or str(error)}
    return {"path": path, "there": True, "files": count, "bytes": total, "sum": whole.hexdigest()}


def _files(path: str) -> Iterator[tuple[str, str]]:
    if not os.path.isdir(path):
        yield os.path.basename(path), path
        return
    for folder, folders, found in os.walk(path):
        folders.sort()
        for name in sorted(found):
            full = os.path.join(folder, name)
            if os.path.isfile(full):
                yield os.path.relpath(full, path), full
