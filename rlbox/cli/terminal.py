"""Standard output, standard error and Ctrl-C of a command line."""

from __future__ import annotations

import atexit
import errno
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from rlbox.errors import NodeError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def watch_interrupts() -> None:
    """Take over Ctrl-C for this process: outside a command nothing is to be cleared up, and it ends at once.

    An exception would not do there: Python drops it where it meets a callback, wraps it where a class is made, and dies
    by the signal where nobody catches it. What is registered first runs last, when no code could answer any more.
    """
    atexit.register(_no_more)
    signal.signal(signal.SIGINT, _leave)


def _no_more() -> None:
    """Let the exit code stand: `python -m` ends by SIGINT if one ever came out of `exec`, which makes dataclasses."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"rlbox: interrupted\n")
    os._exit(130)


@contextmanager
def keyboard_interrupt_enabled() -> Iterator[None]:
    """While a command works Ctrl-C is a KeyboardInterrupt, so that what it began is cleared up."""
    if signal.getsignal(signal.SIGINT) is not _leave:  # rlbox is a guest of this process
        yield
        return
    hook = sys.unraisablehook
    sys.unraisablehook = _dropped
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _leave)
        sys.unraisablehook = hook


def _dropped(lost: sys.UnraisableHookArgs) -> None:
    """Send an interrupt again that came while Python ran a callback, which drops exceptions."""
    if lost.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(lost)
        return
    import threading

    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()


def is_interrupt(error: BaseException | None) -> bool:
    """Whether an error is an interrupt, or was one until Python wrapped it (as where a class is made)."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None


NO_READER = 141
"""What a shell says of who writes to a pipe that nobody reads any more: 128 and SIGPIPE."""


class OutputLostError(NodeError):
    """What standard output goes to takes no more; `left` when its reader has gone, who wants to hear nothing."""

    def __init__(self, error: OSError) -> None:
        super().__init__(
            f"the output cannot be written: {error.strerror}", next_step="free space there, or send it elsewhere"
        )
        self.left = error.errno == errno.EPIPE


class _Writer(io.RawIOBase):
    """A stream whose errors are told from other files': `OutputLostError`. Talk that nobody takes is dropped."""

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
            raise OutputLostError(error) from error


def reopen_closed_streams() -> None:
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
