"""Files below a data disk, which programs of runs write: opened without following a link, regular ones only, bounded.

A folder that a container sees may hold anything by the time it is looked at on the host: a link to a file of the user's
in the place of a record, a pipe that nobody writes to, a file without end. So every path below a data disk is walked
folder by folder with `O_NOFOLLOW` (openat2(2) would do it in one call, which engines' filters refuse), what is opened
must be a regular file, and writing is a rename within the opened folder. Whoever names a data disk resolves it
first: links that lead to it are the user's, links below it are not. `..` is no part of such a path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rlbox.system.command import run_command
from rlbox.values import Command

MAX_BYTES = 8 << 20
"""Of a file that is read whole: records of rlbox have kilobytes, a lock 100 of them."""

_ALWAYS = os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags of a file that nobody can have put there before: whoever may write into a folder may put a link there."""

MAX_DEPTH = 32
"""Levels of folders that are looked into: programs can nest them without end. What rlbox writes has six."""

_BEGUN = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_PATH_STEP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_regular_fd(path: Path, flags: int = os.O_RDONLY, mode: int = 0o644, *, follow_links: bool = False) -> int:
    """Return a handle of the regular file `path`; what is none is refused at once (`EINVAL`), never waited for.

    `follow_links`: for files of this machine, not for those below a data disk. `EMLINK`: what is to be written has a
    second name.
    """
    kept = flags & ~os.O_TRUNC  # nothing is emptied before it is known what it is
    handle = os.open(path, kept | _ALWAYS, mode) if follow_links else _open(path, kept, mode)
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if not follow_links and flags & os.O_ACCMODE != os.O_RDONLY and facts.st_nlink > 1:
        os.close(handle)
        raise OSError(errno.EMLINK, "it is a second name of a file that may lie elsewhere: remove it", str(path))
    if flags & os.O_TRUNC:
        os.ftruncate(handle, 0)
    return handle


def open_regular_file(path: Path, *, follow_links: bool = False) -> BinaryIO:
    return os.fdopen(open_regular_fd(path, follow_links=follow_links), "rb")


def read_bytes(path: Path, raise_above_bytes: int = MAX_BYTES, *, follow_links: bool = False) -> bytes:
    """Return what a file holds; raises as `open_regular_fd`, and `EFBIG` for more than `raise_above_bytes`."""
    with open_regular_file(path, follow_links=follow_links) as file:
        data = file.read(raise_above_bytes + 1)
    if len(data) > raise_above_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {raise_above_bytes} bytes", str(path))
    return data


def replace_file(path: Path, data: bytes, mode: int = 0o644, *, durable: bool = False) -> None:
    """Write a whole file or nothing, in a folder that is there: readers see the old bytes or the new ones.

    A link is replaced itself, not what it leads to. `durable`: have it on the disk before returning. After an OSError
    the old file is untouched and no draft is left.
    """
    draft = f".{path.name}.{os.getpid()}"
    with _open_directory_fd(path.parent) as folder:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=folder)
        try:
            with os.fdopen(os.open(draft, _NEW_FILE_FLAGS, mode, dir_fd=folder), "wb") as file:
                file.write(data)
                os.fchmod(file.fileno(), mode)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.replace(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(draft, dir_fd=folder)
            error.filename, error.filename2 = str(path), None  # that of a write names none
            raise
        if durable:
            with contextlib.suppress(OSError):  # some network file systems refuse; the rename itself is done
                os.fsync(folder)


def create_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    with (
        _open_directory_fd(path.parent) as folder,
        os.fdopen(os.open(path.name, _NEW_FILE_FLAGS, mode, dir_fd=folder), "wb") as file,
    ):
        file.write(data)


def open_recreated_fd(path: Path, mode: int = 0o644) -> int:
    """Return a handle of a new file, open for reading and appending; what has its name, as a link, is removed."""
    with _open_directory_fd(path.parent) as folder:
        while True:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path.name, dir_fd=folder)
            with contextlib.suppress(FileExistsError):  # somebody puts it there again
                return os.open(path.name, _BEGUN, mode, dir_fd=folder)


def rename_path(source: Path, destination: Path) -> None:
    with _open_directory_fd(source.parent) as old, _open_directory_fd(destination.parent) as new:
        os.rename(source.name, destination.name, src_dir_fd=old, dst_dir_fd=new)


def remove_file(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError), _open_directory_fd(path.parent) as folder:
        os.unlink(path.name, dir_fd=folder)


def ensure_dir_without_parents(path: Path) -> None:
    """Make a folder in one that is there; it may be there already, a link may not."""
    with _open_directory_fd(path.parent) as folder, contextlib.suppress(FileExistsError):
        os.mkdir(path.name, dir_fd=folder)
    with _open_directory_fd(path):
        return


def make_directories_replacing_non_directories(root: Path, below: str) -> Path:
    """Make the folders of a path below one that is there, and return the last; a link in their place is removed."""
    for part in Path(below).parts:
        root = root / part
        facts = lstat_path(root)
        if facts is not None and not stat.S_ISDIR(facts.st_mode):
            remove_file(root)
        ensure_dir_without_parents(root)
    return root


def list_directory_empty_if_missing(path: Path) -> list[str]:
    try:
        with _open_directory_fd(path) as folder:
            return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def lstat_path(path: Path) -> os.stat_result | None:
    """Return the facts of a file or folder, of a link itself where that is the last part; None when it is missing."""
    if "\0" in path.name:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
    try:
        with _open_directory_fd(path.parent) as folder:
            return os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def is_regular_file(path: Path) -> bool:
    try:
        facts = lstat_path(path)
    except OSError:
        return False
    return facts is not None and stat.S_ISREG(facts.st_mode)


@contextlib.contextmanager
def _open_directory_fd(path: Path) -> Iterator[int]:
    """Yield a handle of a folder; `OSError` when it is none, or a link is on the way to it."""
    handle = _open(path, _FOLDER, 0)
    try:
        yield handle
    finally:
        os.close(handle)


def _open(path: Path, flags: int, mode: int) -> int:
    if ".." in path.parts or "\0" in str(path):
        raise OSError(errno.EINVAL, "a path below a data disk has no .. and no NUL in it", str(path))
    try:
        return _open_by_walk(path, flags | _ALWAYS, mode)
    except OSError as error:
        raise _explained(error, path) from None


def _open_by_walk(path: Path, flags: int, mode: int) -> int:
    *above, last = path.parts or (".",)
    at: int | None = None
    try:
        for part in above:
            below = os.open(part, _PATH_STEP, dir_fd=at)
            if at is not None:
                os.close(at)
            at = below
        return os.open(last, flags | os.O_NOFOLLOW, mode, dir_fd=at)
    finally:
        if at is not None:
            os.close(at)


def _explained(error: OSError, path: Path) -> OSError:
    """Return an error that names the link on the way, if there is one; the kernel says but that there is."""
    if error.errno not in (errno.ELOOP, errno.ENOTDIR):
        return OSError(error.errno, error.strerror, str(path))
    for part in (*reversed(path.parents), path):
        if part.is_symlink():
            return OSError(errno.ELOOP, "it is a link, and rlbox follows none below a data disk: remove it", str(part))
    return OSError(error.errno, error.strerror, str(path))


class WalkedFile(NamedTuple):
    """A path below the walked folder, with `/`, and what `stat` says of it."""

    relative_path: str
    stat: os.stat_result


def walk_non_directories(path: Path, *, max_depth: int = MAX_DEPTH) -> Iterator[WalkedFile]:
    """Yield what lies below a folder and is none, links themselves too: its path there with `/`, and its facts.

    The order is that of names, the files of a folder before its folders. Nothing comes of a folder that is missing or
    a link, of what cannot be looked into, or of what lies below more than `max_depth` folders.
    """
    with contextlib.suppress(OSError), _open_directory_fd(path) as folder:
        for above, directories, names, handle in os.fwalk(".", dir_fd=folder):
            prefix = f"{above[2:]}/" if above != "." else ""
            entries: dict[str, os.stat_result] = {}
            for name in sorted([*directories, *names]):  # fwalk takes a link to a folder for one
                with contextlib.suppress(OSError):  # a file of a run that goes on
                    entries[name] = os.stat(name, dir_fd=handle, follow_symlinks=False)
            directories[:] = [name for name, facts in entries.items() if stat.S_ISDIR(facts.st_mode)]
            yield from (WalkedFile(prefix + name, entries[name]) for name in entries if name not in directories)
            if above.count("/") >= max_depth:
                directories.clear()


def remove_tree(path: Path) -> None:
    """Remove a folder with all that is in it; links in it are removed, never followed, and no mount is entered.

    Raises OSError: it is a link itself, or one is on the way to it: nothing is removed then. Else: not all could be
      removed.
    """
    with contextlib.suppress(FileNotFoundError), _open_directory_fd(path):
        # rm, since a program can nest folders deeper than Python may call itself
        remove = Command(argv=("rm", "-rf", "--one-file-system", "--", str(path)))
        outcome = run_command(remove)
        if not outcome.ok:  # folders that their owner may not write into
            run_command(Command(argv=("chmod", "-R", "u+rwX", "--", str(path))))
            outcome = run_command(remove)
        if not outcome.ok:
            raise OSError(errno.EACCES, outcome.stderr.strip().partition("\n")[0], str(path))
