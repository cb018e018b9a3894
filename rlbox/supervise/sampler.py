"""Write down what a run uses while it goes: a row of `resources.jsonl` every few seconds, from a thread of its own."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlbox.amounts import utc_now
from rlbox.record.resources import RESOURCES_FILE, create_sample
from rlbox.record.state import RunState
from rlbox.system.counters import ActivitySample, probe_activity, probe_pressure
from rlbox.system.files import get_free_bytes
from rlbox.system.json_files import OpenPerLineAppender
from rlbox.system.limits import count_usable_cores

PAUSE_S = 5.0
_LEAST_PAUSE_S = 0.1
_CPU_SHARE = 0.004
"""Share of a core that sampling may take: a machine with thousands of processes is sampled less often.

Events, which are rare, are sampled at once all the same.
"""

_WAKING = frozenset({"stage", "service", "phase"})


class Sampler:
    """Samples from `start` to `close`; a full disk or a removed directory only costs the rows of that time.

    `parts()` are the ids of the run's living processes by part: `main`, the names of services, `other`.
    """

    def __init__(
        self,
        run_dir: Path,
        parts: Callable[[], Mapping[str, set[int]]],
        state: Callable[[], RunState],
        *,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._phase = ""
        self._rows = OpenPerLineAppender(run_dir / RESOURCES_FILE)
        self._run_dir, self._parts, self._state, self._pause_s = run_dir, parts, state, pause_s
        self._cores = count_usable_cores()
        self._before: ActivitySample | None = None
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._sample_on, name="sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def sample_soon_on_change(self, event: Mapping[str, Any]) -> None:
        if event["event"] in _WAKING:
            self._phase = str(event.get("phase", "")) if event["event"] == "phase" else self._phase
            self._wake.set()

    def close(self) -> None:
        self._closed.set()
        self._wake.set()
        self._thread.join(self._pause_s)

    def _sample_on(self) -> None:
        while True:
            self._wake.clear()
            last = self._closed.is_set()  # looked at first: the last row is of a moment after the end
            spent = time.thread_time()
            with contextlib.suppress(OSError, ValueError):
                self._rows.append(self._row())
            if last:
                return
            cost = (time.thread_time() - spent) / _CPU_SHARE
            if self._wake.wait(max(self._pause_s, cost)):
                self._closed.wait(_LEAST_PAUSE_S)

    def _row(self) -> bytes:
        parts = self._parts()
        now = probe_activity(sorted(set().union(*parts.values())))
        stage = next((s.name for s in self._state().stages if s.state in ("starting", "running")), "")
        sample = create_sample(
            self._before,
            now,
            parts=parts,
            t=utc_now(),
            stage=stage,
            phase=self._phase if stage else "",
            disk_free_bytes=get_free_bytes(self._run_dir),
            cores=self._cores,
            pressure=probe_pressure(),
        )
        self._before = now
        return json.dumps(sample.to_json(), separators=(",", ":")).encode()
