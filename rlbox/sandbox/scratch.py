"""A program's folder: filled before it starts, weighed while it runs, read and taken away afterwards.

What lies in it is the program's: nothing is opened through a link, and no depth of folders or mode of theirs matters.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

from rlbox.sandbox.process_tree import list_descendants, list_threads
from rlbox.system.process_table import read_text

_ENTRIES = 10_000
"""How many files and folders a program may make; more count as a full folder."""
_BRANCHES = 64
"""How many folders above one another may have more than one folder in them."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files whose names are plain paths below `folder`, which nothing has run in yet."""
    for name, content in files.items():
        path = os.path.join(folder, name)
        if "/" in name:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb", buffering=0) as stream:
            os.fchmod(stream.fileno(), 0o755)
            rest = memoryview(content)
            while rest:
                rest = rest[stream.write(rest) :]


def read_files(folder: Path, names: Iterable[str], limit: int) -> dict[str, bytes]:
    """Return what a program left under `names`: regular files, not through links, `limit` bytes together.

    `folder` is a path without links.
    """
    from rlbox.system.safe_files import read_bytes  # a keeper starts for each request, and few ask for files

    found: dict[str, bytes] = {}
    for name in names:
        with contextlib.suppress(OSError):
            found[name] = read_bytes(folder / name, limit)
            limit -= len(found[name])
    return found


def measure_bytes(folder: Path, limit: int) -> int:
    """Return the bytes on disk below `folder`, with deleted files that processes below this one hold open.

    Above `limit`, with too many entries, or where a folder or a process hides what it holds, it is some number above
    `limit`. A process does with a deleted file that it has in its memory and not open: nobody can say how large it is.
    """
    total, count, waiting = 0, 0, [(os.open(folder.parent, _FOLDER), [folder.name])]
    try:
        while waiting and total <= limit:
            above, names = waiting[-1]
            try:
                at = os.open(names.pop(), _FOLDER, dir_fd=above)
            except PermissionError:
                return limit + 1
            except OSError:  # it is gone
                at = -1
            if not names:
                waiting.pop()
                os.close(above)
            if at >= 0:
                weight, entries, lower = _look(at)
                total, count = total + weight, count + entries
                if lower:
                    waiting.append((at, lower))
                else:
                    os.close(at)
            if count > _ENTRIES or len(waiting) > _BRANCHES:
                return limit + 1
    finally:
        for at, _ in waiting:
            os.close(at)
    held = _deleted(f"{folder}/")
    return limit + 1 if held is None else total + sum(held.values())


def _look(at: int) -> tuple[int, int, list[str]]:
    """Return the bytes on disk of what lies in an opened folder, how many entries that are, and the folders' names."""
    total, count, folders = 0, 0, []
    with contextlib.suppress(OSError), os.scandir(at) as entries:
        for count, entry in enumerate(islice(entries, _ENTRIES + 1), 1):  # noqa: B007
            with contextlib.suppress(OSError):
                facts = entry.stat(follow_symlinks=False)
                total += facts.st_blocks * 512
                if stat.S_ISDIR(facts.st_mode):
                    folders.append(entry.name)
    return total, count, folders


def _deleted(folder: str) -> dict[tuple[int, int], int] | None:
    """Return the bytes of deleted files that are open, by file; None where some are held that cannot be weighed."""
    held: dict[tuple[int, int], int] = {}
    for pid in set(list_descendants(os.getpid())):
        opened = set[int]()
        for thread in list_threads(pid):  # one may have files that the others have not
            try:
                names = os.listdir(f"{thread}/fd")
            except PermissionError:
                if read_text(f"{thread}/statm").startswith("0 "):
                    continue  # it is ending
                return None
            except OSError:
                continue
            for name in names:
                with contextlib.suppress(OSError):
                    facts = os.stat(f"{thread}/fd/{name}")
                    if stat.S_ISREG(facts.st_mode) and not facts.st_nlink:
                        held[facts.st_dev, facts.st_ino] = facts.st_blocks * 512
                        opened.add(facts.st_ino)
        if not _mapped(pid, folder) <= opened:
            return None
    return held


def _mapped(pid: int, folder: str) -> set[int]:
    """Return the numbers of deleted files of `folder` that a process has in its memory."""
    texts = (read_text(f"{thread}/maps") for thread in list_threads(pid))
    rows = (line.split(maxsplit=5) for line in next(filter(None, texts), "").splitlines())
    return {
        int(words[4])
        for words in rows
        if len(words) == 6 and words[5].startswith(folder) and words[5].endswith(" (deleted)")
    }


def remove_directory(folder: Path) -> None:
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
