"""The folder of a connection on this machine; one that a killed process left is removed by the next."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from rlbox.system.file_lock import try_lock

_PREFIX = "rlbox-node-"


class ConnectionFolder:
    """A folder that is this process's until `remove`: the kernel holds a lock on it, which goes with the process."""

    def __init__(self) -> None:
        sweep()
        self._handle = -1
        while self._handle < 0:
            self._begin()

    def _begin(self) -> None:
        """Make and lock one; not where another process took it for one left behind before it was locked."""
        self._own = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self.path = self._own / "n"
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(self._own, os.O_RDONLY | os.O_DIRECTORY)
            if try_lock(handle):
                with contextlib.suppress(FileNotFoundError):
                    self.path.mkdir(mode=0o700)
                    self._handle = handle
                    return
            os.close(handle)

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
                if os.fstat(handle).st_uid == os.getuid() and try_lock(handle):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)
