"""Repeat a slow question in the background, so that nobody waits for its answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Poller(Generic[T]):
    """Asks `probe` again, `pause_s` after each answer, until `request_stop` or until `is_final` accepts an answer.

    `changed_at` (monotonic) is the time of the last answer that differed. A probe must not raise.
    """

    def __init__(self, probe: Callable[[], T], pause_s: float, is_final: Callable[[T], bool]) -> None:
        self.latest: T | None = None
        self.changed_at = time.monotonic()
        self._probe = probe
        self._pause_s = pause_s
        self._done = is_final
        self._closed = threading.Event()
        threading.Thread(target=self._ask, daemon=True).start()

    def request_stop(self) -> None:
        self._closed.set()

    def _ask(self) -> None:
        while not self._closed.is_set():
            answer = self._probe()
            if answer != self.latest:
                self.changed_at = time.monotonic()
            self.latest = answer
            if self._done(answer):
                return
            self._closed.wait(self._pause_s)
