"""rlbox's own folders on this machine, and the writing of files that are never half-written."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from rlbox.system.beneath import NEW


def cache_folder(*names: str) -> Path:
    """Return a folder below `$XDG_CACHE_HOME/rlbox`; what is in it can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "rlbox", *names)


def state_folder(*names: str) -> Path:
    """Return a folder below `$XDG_STATE_HOME/rlbox`: what this host knows, and no program of a run can write."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base, "rlbox", *names)


def make_folder(path: Path) -> Path | None:
    """Return `path`, made when it was missing; None when it cannot be made or written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return path if os.access(path, os.W_OK) else None


def write_atomic(path: Path, text: str | bytes, mode: int = 0o644) -> None:
    """Write a whole file or nothing: readers see the old text or the new one.

    Raises
    ------
    OSError
        It cannot be written, and is named; or what has its name is no regular file: devices, FIFOs, sockets and
        folders stay. A link to a regular file is replaced, not what it leads to.
    """
    if kind := special_kind(path):
        raise OSError(errno.EINVAL, f"is {kind}, which is not replaced", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(draft, NEW, mode), "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
            os.fchmod(file.fileno(), mode)
        os.replace(draft, path)
    except OSError as error:
        error.filename = error.filename or str(path)  # that of a write names none
        raise
    finally:
        draft.unlink(missing_ok=True)


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}


def special_kind(path: Path) -> str:
    """Return what stands at a path, links followed, if that is no regular file (`a device`); else an empty text."""
    try:
        if path.is_symlink() and str(path).startswith(("/dev/", "/proc/")):
            return "a device"  # /dev/stdout, which may lead to a file
        return _KINDS.get(stat.S_IFMT(path.stat().st_mode), "")
    except OSError:
        return ""


def write_if_changed(path: Path, text: str) -> bool:
    """Write `text` unless the file holds it already; return whether it was written."""
    data = text.encode()
    try:
        if path.read_bytes() == data:
            return False
    except OSError:
        pass
    write_atomic(path, data)
    return True
