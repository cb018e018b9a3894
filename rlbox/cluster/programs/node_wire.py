"""What a node's program and who started it say to each other: a line of JSON each, bytes behind it where it says so."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

    Row = dict[str, Any]

BLOCK = 1 << 18


def to_json(value: object) -> str:
    """Return a value as JSON on one line."""
    return json.dumps(value)


def from_json(text: bytes) -> Any:
    """Return the value of a JSON text; `ValueError` where it is none."""
    return json.loads(text.decode("utf-8", "replace"))


class NodeFailed(Exception):
    """What a request could not do; `kind` is a word that the other side knows."""

    def __init__(self, what: str, kind: str = "failed") -> None:
        super().__init__(what)
        self.kind = kind


class NodeWire:
    """Both directions: rows are read by one thread, and said by several."""

    def __init__(self, source: IO[bytes], goal: IO[bytes]) -> None:
        self._source, self._goal = source, goal
        self._lock = threading.Lock()

    def say(self, row: Row) -> None:
        """Say one row."""
        line = to_json(row).encode() + b"\n"
        with self._lock:
            self._goal.write(line)
            self._goal.flush()

    def hear(self) -> Row | None:
        """Return the next row, None at the end."""
        line = self._source.readline()
        if not line.endswith(b"\n"):
            return None
        row = from_json(line)
        return row if isinstance(row, dict) else {}

    def blocks(self, size: int) -> Iterator[bytes]:
        """Yield the `size` bytes behind a row; fewer where the connection ends."""
        while size:
            block = self._source.read(min(size, BLOCK))
            if not block:
                return
            size -= len(block)
            yield block
