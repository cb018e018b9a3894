"""Records a run while it goes: `run.json` for what is, `events.jsonl` for what happened."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlbox.amounts import utc_now
from rlbox.diagnose.cause import Cause, make_disk_full_cause
from rlbox.i18n import _
from rlbox.record.state import EVENTS_FILE, RunState, replace_service, replace_stage, write_run_state
from rlbox.secrets.masks import SecretMasker
from rlbox.system.files import free_bytes_or_0, is_enospc_or_edquot
from rlbox.system.json_files import OpenPerLineAppender
from rlbox.system.safe_files import lstat_path, remove_file, replace_file

_RESERVE_FILE = ".reserve"
_RESERVE_BYTES = 256 * 1024

Event = dict[str, Any]
"""One event: `t` (UTC), `stage` (empty for the run), `event` and what belongs to it."""


class Journal:
    """The run's state, written at every change; a new `state` of a stage is on the disk before it goes on.

    A disk that fills up raises nothing here: `problem` then says so, and space that was set aside at the start is
    given up, so that the last state can still be written. `saved` tells whether `run.json` holds the present state.
    """

    def __init__(self, run_dir: Path, state: RunState, masks: SecretMasker, on_event: Callable[[Event], None]) -> None:
        self.run_dir = run_dir
        self.state = state
        self.problem: Cause | None = None
        self.saved = False
        self.masks = masks
        self._on_event = on_event
        self._events = OpenPerLineAppender(run_dir / EVENTS_FILE)
        self._inode = _inode(run_dir)
        self._there = True
        self._attempt(lambda: reserve_disk_space_for_record(run_dir))
        self._write_state()

    def was_run_dir_never_removed(self) -> bool:
        """Whether the run directory was there all the time; one that is created again may get the same inode."""
        self._there = self._there and _inode(self.run_dir) == self._inode
        return self._there

    def update_and_log_run(self, event: str, **changes: Any) -> None:
        self.state = dataclasses.replace(self.state, **changes)
        self._write_state()
        fields = {key: dataclasses.asdict(v) if isinstance(v, Cause) else v for key, v in changes.items()}
        self.record_event("", event, **fields)

    def update_stage_and_log_state_change(self, stage: str, **changes: Any) -> None:
        self.state = replace_stage(self.state, stage, **changes)
        self._write_state(durable="state" in changes)
        if "state" in changes:
            cause: Cause | None = changes.get("cause")
            self.record_event(stage, "stage", state=changes["state"], **({"cause": cause.what} if cause else {}))

    def update_service_and_log_state_change(self, stage: str, service: str, **changes: Any) -> None:
        self.state = replace_service(self.state, stage, service, **changes)
        self._write_state(durable=False)
        if "state" in changes:
            self.record_event(stage, "service", service=service, state=changes["state"])

    def record_event(self, stage: str, event: str, **fields: Any) -> None:
        record = {"t": utc_now(), "stage": stage, "event": event, **self.masks.mask_json(fields)}
        line = json.dumps(record, ensure_ascii=False).encode("utf-8", "replace")
        self._attempt(lambda: self._events.append(line))
        self._on_event(record)

    def free_reserved_space_and_save_state(self) -> None:
        self._release()
        self._write_state()

    def _write_state(self, *, durable: bool = True) -> None:
        self.saved = self._attempt(lambda: write_run_state(self.run_dir, self.state, self.masks, durable=durable))

    def _attempt(self, write: Callable[[], None]) -> bool:
        try:
            write()
            return True
        except OSError as error:
            self.problem = self.problem or explain_write_error(str(self.run_dir), error, self.run_dir)
        self._release()
        try:
            write()
            return True
        except OSError:
            return False

    def _release(self) -> None:
        with contextlib.suppress(OSError):
            remove_file(self.run_dir / _RESERVE_FILE)


def explain_write_error(path: str, error: OSError, run_dir: Path) -> Cause:
    if is_enospc_or_edquot(error):
        return make_disk_full_cause(str(run_dir), free_bytes_or_0(run_dir))
    what = _("the run directory cannot be written: {error}").format(error=error.strerror or error)
    return Cause(kind="disk", what=what, where=path)


def _inode(folder: Path) -> int:
    try:
        return os.stat(folder).st_ino
    except OSError:
        return 0


def reserve_disk_space_for_record(run_dir: Path) -> None:
    """Set space aside that the last word about a run can be written into; raises `OSError`."""
    path = run_dir / _RESERVE_FILE
    facts = lstat_path(path)
    if facts is None or facts.st_size < _RESERVE_BYTES:
        replace_file(path, b"\0" * _RESERVE_BYTES)
