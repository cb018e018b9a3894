"""A lock between rlbox processes on one machine; the kernel drops it when its holder dies."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlbox.errors import LockHeld


@contextmanager
def hold(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path` while the block runs.

    Raises
    ------
    LockHeld
        Another process holds it; the message says who, since when and for what.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            raise LockHeld(
                f"another rlbox is busy with the {what}: {_holder(file.read())}",
                where=str(path),
                next_step="wait for it to end",
            ) from error
        file.truncate(0)
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        file.write(json.dumps({"pid": os.getpid(), "since": since, "what": what}))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _holder(text: str) -> str:
    try:
        facts = json.loads(text)
        return f"pid {facts['pid']} since {facts['since']}"
    except (ValueError, KeyError, TypeError):
        return "holder unknown"
