"""The kernel's locks on files, between rlbox processes of one machine; one is dropped when its last holder dies.

flock(2), not POSIX locks: those are dropped as soon as the process closes any handle of the file, and a child does not
inherit them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rlbox.errors import LockHeld
from rlbox.i18n import _

LOCK_TIMEOUT_S = 60.0
"""How long a lock is waited for: what holds one is done within seconds, but for a build or a first preparation."""

_OPENED = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_QUIET_S, _PAUSE_S = 1.0, 0.05
_NOTE_BYTES = 100


def try_lock(handle: int, *, shared: bool = False) -> bool:
    """Return whether the lock was had; whoever inherits or copies the handle holds it, too."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_lock_unless_held(path: Path, *, create_else_raise: bool) -> int | None:
    """Return a locked handle of the file that has this name now, or None while another process or thread holds it."""
    while True:
        handle = os.open(path, _OPENED | (os.O_CREAT if create_else_raise else 0), 0o644)
        try:
            facts = os.fstat(handle)
            if not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:
                raise OSError(errno.EINVAL, "it is no file of its own: remove it", str(path))
            if not try_lock(handle):
                os.close(handle)
                return None
            if os.path.samestat(facts, os.stat(path)):
                return handle
        except FileNotFoundError:  # the holder renamed it between our two calls
            pass
        except OSError:
            os.close(handle)
            raise
        os.close(handle)


@contextmanager
def hold_lock(
    path: Path, purpose: str, *, timeout_s: float = LOCK_TIMEOUT_S, on_wait: Callable[[str], None] = lambda text: None
) -> Iterator[None]:
    """Hold the lock file `path` while the block runs; what is waited for is told once, after a second.

    Raises LockHeld: another process holds it for longer than `timeout_s`; the message says who, since when and for
      what.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    begun, told = time.monotonic(), False
    while (handle := open_lock_unless_held(path, create_else_raise=True)) is None:
        waited_s, held = time.monotonic() - begun, create_lock_held_error(path, purpose)
        if waited_s >= timeout_s:
            raise held
        if waited_s > _QUIET_S and not told:
            told = True
            on_wait(_("waiting: {what}").format(what=held.what))
        time.sleep(_PAUSE_S)
    with os.fdopen(handle, "r+", encoding="utf-8") as file:
        file.truncate(0)
        file.write(f"pid {os.getpid()} since {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def require_unlocked(path: Path, purpose: str) -> None:
    """Raise `LockHeld` while another process holds the lock file `path`; nothing is made, and nobody waited for."""
    try:
        handle = open_lock_unless_held(path, create_else_raise=False)
    except OSError:
        return
    if handle is None:
        raise create_lock_held_error(path, purpose)
    os.close(handle)


def create_lock_held_error(path: Path, purpose: str) -> LockHeld:
    try:
        with path.open("rb") as file:
            holder = file.read(_NOTE_BYTES).decode("utf-8", "replace")
    except OSError:
        holder = ""
    return LockHeld(
        _("another rlbox is busy with the {what}: {holder}").format(what=purpose, holder=holder or _("holder unknown")),
        where=str(path),
        next_step=_("wait for it to end"),
    )
