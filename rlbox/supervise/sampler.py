"""Write down what a run uses while it goes: a row of `resources.jsonl` every few seconds."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rlbox.amounts import utc_now
from rlbox.record.resources import RESOURCES_FILE, create_resource_sample
from rlbox.record.state import RunState
from rlbox.system.counters import ActivitySample, probe_machine_and_process_activity, probe_pressure
from rlbox.system.files import free_bytes_or_0
from rlbox.system.json_files import OpenPerLineAppender
from rlbox.system.limits import count_usable_cores

_PAUSE_S = 5.0


class ResourceSampler:
    """Samples every five seconds, and at once when the stage, its state or its phase changes.

    A full disk or a removed directory only costs the rows of that time. `list_pids_by_part()` are the ids of the run's
    living processes by part: `main`, the names of services, `other`.
    """

    def __init__(
        self, run_dir: Path, list_pids_by_part: Callable[[], Mapping[str, set[int]]], get_state: Callable[[], RunState]
    ) -> None:
        self._rows = OpenPerLineAppender(run_dir / RESOURCES_FILE)
        self._run_dir, self._list_pids_by_part, self._get_state = run_dir, list_pids_by_part, get_state
        self._cores = count_usable_cores()
        self._before: ActivitySample | None = None
        self._activity = ("", "", "")
        self._due_s = 0.0

    def append_sample_if_due_or_changed(self) -> None:
        if time.monotonic() >= self._due_s or self._activity != self._find_activity():
            self.append_sample()

    def append_sample(self) -> None:
        self._activity, self._due_s = self._find_activity(), time.monotonic() + _PAUSE_S
        with contextlib.suppress(OSError, ValueError):
            self._rows.append(self._create_row())

    def _find_activity(self) -> tuple[str, str, str]:
        stages = self._get_state().stages
        return next(((s.name, s.state, s.phase) for s in stages if s.state in ("starting", "running")), ("", "", ""))

    def _create_row(self) -> bytes:
        parts = self._list_pids_by_part()
        before, self._before = self._before, probe_machine_and_process_activity(sorted(set().union(*parts.values())))
        stage, _, phase = self._activity
        sample = create_resource_sample(
            before,
            self._before,
            part_pids=parts,
            timestamp=utc_now(),
            stage=stage,
            phase=phase,
            disk_free_bytes=free_bytes_or_0(self._run_dir),
            cores=self._cores,
            pressure=probe_pressure(),
        )
        return json.dumps(sample.to_json(), separators=(",", ":")).encode()
