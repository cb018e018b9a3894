"""What a command line writes to: perhaps closed, full, left by its reader, or of a locale that has few characters."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

from rlbox.errors import NodeError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

NO_READER = 141
"""What a shell says of who writes to a pipe that nobody reads any more: 128 and SIGPIPE."""


class OutputLost(NodeError):
    """What standard output goes to takes no more; `left` when its reader has gone, who wants to hear nothing."""

    def __init__(self, error: OSError) -> None:
        super().__init__(
            f"the output cannot be written: {error.strerror}", next_step="free space there, or send it elsewhere"
        )
        self.left = error.errno == errno.EPIPE


class _Writer(io.RawIOBase):
    """A number whose errors are told from those of other files: `OutputLost`. Talk that nobody takes is dropped."""

    def __init__(self, number: int, *, talk: bool) -> None:
        self._number, self._talk = number, talk

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return os.write(self._number, data)
        except OSError as error:
            if self._talk and error.errno != errno.EPIPE:
                return memoryview(data).nbytes
            raise OutputLost(error) from error


def open_streams() -> None:
    """Give this process an output and talk that can always be written to; what is closed leads nowhere.

    A closed number would be that of the next file that is opened, and what a child says would be written into it.
    Characters that the locale lacks are escaped.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
    sys.stdin = sys.stdin or open(0)  # noqa: SIM115 - as long as the process lives
    sys.stdout = _opened(sys.stdout, 1)
    sys.stderr = _opened(sys.stderr, 2)


def _opened(before: TextIO | None, number: int) -> TextIO:
    raw = _Writer(number, talk=number == 2)
    lines = number == 2 or raw.isatty()
    encoding = before.encoding if before else "utf-8"
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=lines)


def discard_output() -> None:
    """Let what is still to be written lead nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)
