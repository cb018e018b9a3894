"""How one run is told to have ended, and brought to its end when it is dead."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from rlbox.causes.cause import End, LastWord
from rlbox.errors import NodeError
from rlbox.files.act.rows import read_table
from rlbox.job.plan import RunPlan
from rlbox.machine.act.identity import probe_machine_life
from rlbox.record.act.journal import EVENTS_FILE
from rlbox.record.act.remains import end_remains
from rlbox.record.act.settle import settle_run
from rlbox.record.act.state import RUN_FILE
from rlbox.record.act.supervisor_file import load_supervisor, same_life
from rlbox.record.carrier import Carrier, CarrierNote, CarrierStatus

ENDED = ("passed", "failed", "interrupted")
_FRESH_S = 60.0
"""The supervisor writes down every few seconds what its run uses."""


def has_ended(run_dir: Path) -> bool:
    """Whether the state of a run says that it ended."""
    return read_table(run_dir / RUN_FILE).get("state") in ENDED


def carrier_word(carrier: Carrier, status: CarrierStatus, note: CarrierNote, run_dir: Path) -> LastWord | None:
    """Return what is known of the end of a run's carrier; None when it had never started."""
    if status == "made":
        return None
    last = carrier.last_word() if status == "ended" else None
    if last is None and (status == "ended" or note.started or load_supervisor(run_dir) is not None):
        return LastWord(end="removed", container=note.name)
    return last


def write_end(run_dir: Path, plan: RunPlan, last: LastWord | None) -> None:
    """End what is left of a run, and write its end down; one that never began stays as it is.

    Raises
    ------
    NodeError
        It seems to go on on another machine.
    """
    facts, life = load_supervisor(run_dir), probe_machine_life()
    elsewhere = plan.host not in ("", life.host)
    if elsewhere and _grows(run_dir):
        raise NodeError(f"it seems to go on at host {plan.host}, where its files grow")
    if plan.owns_processes:
        end_remains(run_dir, plan.run_id)
    wrote = any((run_dir / name).exists() for name in (RUN_FILE, EVENTS_FILE))
    began = facts or wrote or last is not None
    if not began:
        return
    seen = last is not None and last.end in ("memory", "ended")
    if facts and not same_life(facts, life) and not seen:
        ended: End = "restarted" if facts.boot_id == life.boot_id else "rebooted"
        last = LastWord(end="elsewhere" if elsewhere else ended, host=plan.host)
    settle_run(run_dir, plan, last or LastWord(end="gone"))


def _grows(run_dir: Path) -> bool:
    """Whether anything was written into a run directory of late, by the clock of its file system.

    Locks of some shared file systems hold on one machine only: then this alone tells a living run on another.
    """
    with tempfile.TemporaryFile(dir=run_dir) as probe:
        now = os.fstat(probe.fileno()).st_mtime
    paths = [*run_dir.glob("*.json*"), *run_dir.glob("stages/*/*.log")]
    return any(now - path.stat().st_mtime < _FRESH_S for path in paths)
