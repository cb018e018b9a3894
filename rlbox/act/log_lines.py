"""Read a log file in pieces, in flat memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_BLOCK = 1 << 20


def read_blocks(path: Path) -> Iterator[bytes]:
    """Return the bytes of a log in pieces of at most 1 MiB; nothing when it is missing."""
    if path.is_file():
        with open(path, "rb") as file:
            while block := file.read(_BLOCK):
                yield block
