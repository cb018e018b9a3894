"""Run probes at once, each named; at the deadline what is not done is named and left behind."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from rlbox.findings import Finding

Probe = Callable[[], Iterable[Finding]]


@dataclass
class Probes:
    """Probes that run in threads: daemons, since one that hangs in the kernel must not keep rlbox from ending."""

    deadline: float
    findings: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)
    _threads: dict[str, threading.Thread] = field(default_factory=dict)
    _found: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)

    def start(self, probes: Mapping[str, Probe]) -> None:
        """Start each probe in a thread of its own."""
        for name, probe in probes.items():
            self._threads[name] = threading.Thread(target=self._run, args=(name, probe), daemon=True)
            self._threads[name].start()

    def wait(self) -> None:
        """Wait for all that were started, at most until the deadline; what is found later is not told."""
        for name, thread in self._threads.items():
            thread.join(max(self.deadline - time.monotonic(), 0.01))
            if name in self._found:
                self.findings[name] = self._found[name]
            elif not any(row.startswith(f"{name}:") for row in self.unfinished):
                self.unfinished.append(f"{name}: not done in time")

    def goes_on(self, name: str) -> bool:
        """Tell whether a probe that was started has not ended; threading forgets it where Ctrl-C cuts a `join`."""
        return name in self._threads and name not in self._ended

    def _run(self, name: str, probe: Probe) -> None:
        try:
            self._found[name] = tuple(probe())
        except Exception as error:  # a probe that fails says nothing of the machine, and must not hide the others
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.unfinished.append(f"{name}: {f'{type(error).__name__}: {error} ({where.name})'}")
        finally:
            self._ended.add(name)
