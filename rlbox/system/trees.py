"""Folders with all that is in them, below a data disk: walked, copied and removed, however deep, no link followed.

A program of a run can nest folders deeper than a path may be long, or than a program may call itself: so walking ends
at a depth, and removing brings what lies deep to the top first.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import itertools
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from rlbox.system.beneath import WALKED, create_file, make_folder_at, opened_folder

DEEPEST = 32
"""Levels of folders that are looked into; what rlbox writes has six."""

_MOST_NAMES = 100_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def walk_files(path: Path, *, deepest: int = DEEPEST, folders: bool = False) -> Iterator[tuple[str, os.stat_result]]:
    """Yield what lies below a folder and is none, links themselves too: its path there with `/`, and its facts.

    `folders`: yield them too, each before what lies in it.

    The order is that of names, the files of a folder before its folders. Nothing comes of a folder that is missing or
    a link, of what cannot be looked into, or of what lies below more than `deepest` folders.
    """
    try:
        with opened_folder(path) as folder:
            for name, facts in _walk(folder, "", deepest):
                if folders or not stat.S_ISDIR(facts.st_mode):
                    yield name, facts
    except OSError:
        return


def find_files(path: Path, name: str, *, deepest: int = DEEPEST) -> list[Path]:
    """Return the regular files below a folder whose path there ends with `name`, sorted; links are not followed."""
    found = (below for below, facts in walk_files(path, deepest=deepest) if stat.S_ISREG(facts.st_mode))
    return sorted(path / below for below in found if f"/{below}".endswith(f"/{name}"))


def copy_tree(source: Path, goal: Path, ignore: tuple[str, ...] = ()) -> None:
    """Copy a folder of this machine, where links are followed, into one below a data disk; raises `OSError`.

    Names that fit one of `ignore` are left out.
    """
    make_folder_at(goal)
    for name in sorted(os.listdir(source)):
        if any(fnmatch.fnmatch(name, pattern) for pattern in ignore):
            continue
        path = source / name
        if path.is_dir():
            copy_tree(path, goal / name, ignore)
        else:
            create_file(goal / name, path.read_bytes(), stat.S_IMODE(path.stat().st_mode))


def remove_tree(path: Path) -> None:
    """Remove a folder with all that is in it; links in it are removed, never followed, and no mount is entered.

    Raises
    ------
    OSError
        It is a link itself, or one is on the way to it: nothing is removed then. Else: not all could be removed.
    """
    with contextlib.suppress(FileNotFoundError), opened_folder(path) as folder:
        while _thin_out(folder):
            pass
        with opened_folder(path.parent) as above:
            os.rmdir(path.name, dir_fd=above)


def _walk(folder: int, above: str, deepest: int) -> Iterator[tuple[str, os.stat_result]]:
    folders: dict[str, os.stat_result] = {}
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in itertools.islice(entries, _MOST_NAMES))
    for name in names:
        try:
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            continue  # a file of a run that goes on
        if stat.S_ISDIR(facts.st_mode):
            folders[name] = facts
        else:
            yield f"{above}{name}", facts
    for name, facts in folders.items():
        yield f"{above}{name}", facts
        if deepest <= 0:
            continue
        try:
            below = os.open(name, _FOLDER, dir_fd=folder)
        except OSError:
            continue
        try:
            yield from _walk(below, f"{above}{name}/", deepest - 1)
        finally:
            os.close(below)


def _thin_out(folder: int) -> bool:
    """Remove what is in an opened folder but the folders below its own, which come to the top; whether any did."""
    moved, problems = False, list[OSError]()
    for name in os.listdir(folder):
        try:
            moved |= not _removed(folder, name) and _taken_apart(folder, name)
        except OSError as error:
            problems.append(error)
    if problems:
        raise problems[0]
    return moved


def _removed(folder: int, name: str) -> bool:
    """Remove a file, or a folder with nothing in it; False for one that holds something. A mount is busy."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=folder)
        return True
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _taken_apart(folder: int, name: str) -> bool:
    """Remove a folder and the files in it; its own folders come to the top under new names. Whether there were any."""
    moved, inner = False, _open_own(folder, name)
    try:
        for each in os.listdir(inner):
            if not _removed(inner, each):
                os.close(_open_own(inner, each))  # whoever moves a folder must be able to write into it
                os.rename(each, f".{secrets.token_hex(8)}", src_dir_fd=inner, dst_dir_fd=folder)
                moved = True
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=folder)
    return moved


def _open_own(folder: int, name: str) -> int:
    """Return a handle of a folder that is to go, opened for its owner whatever its mode was."""
    handle = os.open(name, WALKED, dir_fd=folder)
    try:
        with contextlib.suppress(OSError):
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
    finally:
        os.close(handle)
    return os.open(name, _FOLDER, dir_fd=folder)
