"""How much room a disk has, and whether an error says that it has none."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def free_bytes(path: Path) -> int:
    """Return what an unprivileged process may still write where `path` is, or would be; 0 when that cannot be told."""
    for folder in (path, *path.parents):
        try:
            facts = os.statvfs(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return 0
        return facts.f_bavail * facts.f_frsize
    return 0


def disk_full(error: BaseException) -> bool:
    """Whether a write failed because the disk, or the user's part of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
