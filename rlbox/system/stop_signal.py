"""The request to stop that comes as a signal."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType

STOP_GRACE_S = 6.0
"""Grace of all processes together once the user asked to stop, well under the 10 s of `docker stop`."""


class StopSignal:
    """Remembers the first SIGTERM or SIGINT; a hang-up of the terminal is no reason to stop."""

    def __init__(self) -> None:
        self.name = ""
        self._at = 0.0

    def install(self) -> None:
        """Take over the signals of this process, also those that wait; those it starts get the defaults back."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)
        signal.signal(signal.SIGHUP, _stay)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM, signal.SIGINT])

    def request(self, name: str) -> None:
        """Stop for `name`, as if its signal had come; the first reason stays."""
        if not self.name:
            self._at = time.monotonic()
            self.name = name

    def cap_deadline(self, planned: float) -> float:
        """Return the time (monotonic) until which to be patient: `planned`, or sooner when asked to stop."""
        return min(planned, self._at + STOP_GRACE_S) if self.name else planned

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.request(signal.Signals(number).name)


def _stay(number: int, frame: FrameType | None) -> None:
    """Do nothing. SIG_IGN would be inherited by every process of the run."""


@contextlib.contextmanager
def handle_stop_signals(on_signal: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have Ctrl-C and SIGTERM told to `on_signal` while the block runs, instead of dying of them."""
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)
