"""One log of a run: masked bytes appended, and dated in a file next to it."""

from __future__ import annotations

import bisect
import os
import threading
import time
from pathlib import Path

from rlbox.foreign import parse_digits
from rlbox.secrets.mask_stream import MaskStream
from rlbox.secrets.url_credentials import UrlAndHeaderMaskStream
from rlbox.system.safe_files import open_recreated_fd, open_regular_file
from rlbox.system.tail import BLOCK

TIMES_SUFFIX = ".times"
"""`<log>.times` has lines `OFFSET UNIX_MS`, one a second at most: what was written from that time on begins there."""

_DATED_S = 1.0
_TIMES_BYTES = 64 << 20


class MaskedLogFile:
    """A log that one thread appends to while another reads it back; both through one handle.

    `size` is how many bytes are in it, `read_offset` how many of them the reader has used, `truncations` how often
    somebody else emptied it: offsets begin at 0 again after each.
    """

    def __init__(self, path: Path, masks: MaskStream) -> None:
        self.path = path
        self.size = 0
        self.read_offset = 0
        self.truncations = 0
        self._masks = masks
        self._credentials = UrlAndHeaderMaskStream()
        self._lock = threading.Lock()
        self._handle = open_recreated_fd(path)
        self._times = open_recreated_fd(path.with_name(f"{path.name}{TIMES_SUFFIX}"))
        self._date_at = 0.0

    @property
    def unread_bytes(self) -> int:
        return self.size - self.read_offset

    def mask_and_append(self, data: bytes) -> None:
        """Append `data`, masked; what may be the beginning of a secret waits for what follows.

        Raises OSError: The disk is full or gone; what was written before stays.
        """
        self._append(self._credentials.feed(self._masks.feed(data)))

    def flush_held_back_bytes(self) -> None:
        self._append(self._credentials.feed(self._masks.close()) + self._credentials.close())

    def read_next_block_or_empty(self) -> bytes:
        if not self.unread_bytes:
            return b""
        data = os.pread(self._handle, min(BLOCK, self.unread_bytes), self.read_offset)
        if not data:  # less is there than was written
            with self._lock:
                self.read_offset, self.size = 0, os.fstat(self._handle).st_size
            self.truncations += 1
            data = os.pread(self._handle, BLOCK, 0)
        self.read_offset += len(data)
        return data

    def close_without_flush(self) -> None:
        os.close(self._handle)
        os.close(self._times)

    def _append(self, data: bytes) -> None:
        if not data:
            return
        now = time.time()
        if not 0 <= now - self._date_at < _DATED_S:
            self._date_at = now
            os.write(self._times, f"{self.size} {int(now * 1000)}\n".encode())
        rest = memoryview(data)
        with self._lock:
            if os.fstat(self._handle).st_size > self.size:  # else it would lie where no reader looks for it
                os.ftruncate(self._handle, self.size)
            while rest:
                count = os.write(self._handle, rest)
                self.size += count
                rest = rest[count:]


class LogTimes:
    """What the file beside a log says: rows `OFFSET UNIX_MS`, what was written from that time on begins there.

    Rows are a second apart or more. One that was torn by a kill is left out, as are those behind a log that was emptied
    for as long as they go back.
    """

    def __init__(self, log: Path) -> None:
        self._rows: list[tuple[int, float]] = []
        try:
            with open_regular_file(Path(f"{log}{TIMES_SUFFIX}")) as file:
                data = file.read(_TIMES_BYTES)
        except OSError:
            return
        for line in data.splitlines():
            offset, _, moment = line.strip().partition(b" ")
            place, at_ms = parse_digits(offset), parse_digits(moment)
            if place is not None and at_ms is not None and (not self._rows or place >= self._rows[-1][0]):
                self._rows.append((place, at_ms / 1000))

    def find_write_time_unix(self, offset: int) -> float | None:
        """Return the Unix time at which the byte at `offset` was written; None when unknown."""
        index = bisect.bisect_right(self._rows, (offset, float("inf")))
        return self._rows[max(index - 1, 0)][1] if self._rows else None
