"""Ctrl-C ends a command line with exit code 130, whenever it comes."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def watch_interrupts() -> None:
    """Take over Ctrl-C for this process: outside a verb nothing is to be cleared up, and it ends at once.

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
def interruptible() -> Iterator[None]:
    """While a verb works Ctrl-C is a KeyboardInterrupt, so that what it began is cleared up."""
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
