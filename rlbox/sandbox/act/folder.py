"""A program's folder: filled before it starts, weighed while it runs, read and taken away afterwards.

What lies in it is the program's: nothing is opened through a link, and no depth of folders or mode of theirs matters.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rlbox.sandbox.act.tree import below

_ENTRIES = 10_000
"""How many files and folders a program may make; more count as a full folder."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def fill(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files whose names are plain paths below `folder`, which nothing has run in yet."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755)


def read_files(folder: Path, names: Iterable[str], limit: int) -> dict[str, bytes]:
    """Return what a program left under `names`: regular files, not through links, `limit` bytes together."""
    found: dict[str, bytes] = {}
    for name in names:
        with contextlib.suppress(OSError), _opened(folder, name) as file:
            facts = os.fstat(file)
            if stat.S_ISREG(facts.st_mode) and facts.st_size <= limit:
                limit -= facts.st_size
                with open(file, "rb", closefd=False) as stream:
                    found[name] = stream.read(facts.st_size)
    return found


@contextlib.contextmanager
def _opened(folder: Path, name: str) -> Iterator[int]:
    at = os.open(folder, _FOLDER)
    try:
        *above, last = name.split("/")
        for part in above:
            lower = os.open(part, _FOLDER, dir_fd=at)
            os.close(at)
            at = lower
        file = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)
    try:
        yield file
    finally:
        os.close(file)


def weigh(folder: Path, limit: int) -> int:
    """Return the bytes on disk below `folder`, with deleted files that processes below this one hold open.

    Above `limit`, or with too many entries, it is some number above `limit`.
    """
    total, count, waiting = 0, 0, [os.open(folder, _FOLDER)]
    try:
        while waiting and total <= limit:
            at = waiting.pop()
            with os.scandir(at) as entries:
                for entry in entries:
                    count += 1
                    with contextlib.suppress(OSError):
                        facts = entry.stat(follow_symlinks=False)
                        total += facts.st_blocks * 512
                        if stat.S_ISDIR(facts.st_mode) and len(waiting) < 64:
                            waiting.append(os.open(entry.name, _FOLDER, dir_fd=at))
                    if count > _ENTRIES:
                        total = limit + 1
                        break
            os.close(at)
    finally:
        for at in waiting:
            os.close(at)
    return total + sum(_deleted().values())


def _deleted() -> dict[tuple[int, int], int]:
    held: dict[tuple[int, int], int] = {}
    for pid in set(below(os.getpid())):
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    facts = os.stat(f"/proc/{pid}/fd/{name}")
                    if stat.S_ISREG(facts.st_mode) and not facts.st_nlink:
                        held[facts.st_dev, facts.st_ino] = facts.st_blocks * 512
    return held


def remove(folder: Path) -> None:
    """Remove a folder with whatever is in it; what lies deep is first brought up, so that no path is too long."""
    if not folder.is_dir():
        return
    os.chmod(folder, 0o700)
    top, number = os.open(folder, _FOLDER), 0
    try:
        while names := os.listdir(top):
            for name in names:
                try:
                    os.unlink(name, dir_fd=top)
                    continue
                except IsADirectoryError:
                    os.chmod(name, 0o700, dir_fd=top)
                at = os.open(name, _FOLDER, dir_fd=top)
                try:
                    for inner in os.listdir(at):
                        number += 1
                        _lift(inner, at, top, f".{number}.")
                finally:
                    os.close(at)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(folder)


def _lift(name: str, source: int, goal: int, new: str) -> None:
    """Remove a file, or move a folder up; a folder must be its owner's to write before it can be moved."""
    try:
        os.unlink(name, dir_fd=source)
    except IsADirectoryError:
        os.chmod(name, 0o700, dir_fd=source)
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=goal)
