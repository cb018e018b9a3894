"""The folder of a connection on this machine; one that a killed process left is removed by the next."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from rlbox.files.act.lock import try_lock

_PREFIX = "rlbox-node-"
_BEGUN_S = 60.0
"""How old an empty folder is that nobody is about to lock."""


class ConnectionFolder:
    """A folder that is this process's until `remove`: the kernel holds a lock on it, which goes with the process."""

    def __init__(self) -> None:
        sweep()
        self._own = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._handle = os.open(self._own, os.O_RDONLY | os.O_DIRECTORY)
        try_lock(self._handle)
        self.path = self._own / "n"
        self.path.mkdir(mode=0o700)

    def remove(self) -> None:
        """Remove it with what is in it; again is no error."""
        shutil.rmtree(self._own, ignore_errors=True)
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def sweep() -> None:
    """Remove folders of this user's whose process is gone."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                about = os.fstat(handle)
                begun = any(path.iterdir()) or time.time() - about.st_mtime > _BEGUN_S
                if about.st_uid == os.getuid() and begun and try_lock(handle):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)
