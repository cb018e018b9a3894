"""Bring the runs of a data disk up to date: ended containers are settled and removed, what dead runs left is ended.

Every verb about runs does this first. It holds the disk's lock meanwhile, so that no run can start and no other can
settle; a disk whose lock a run holds has nothing to settle but that run's predecessors, and those were settled before
it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rlbox.causes.lost import End, LastWord, container_end
from rlbox.errors import LockHeld, NodeError, RlboxError
from rlbox.job.plan import RunPlan
from rlbox.machine.act.identity import probe_machine_life
from rlbox.record.act.container_note import ContainerNote, forget_note, list_notes
from rlbox.record.act.disk_lock import Holder, disk_holder, take_disk
from rlbox.record.act.folder import PLAN_FILE, RUNS, forget_unfinished, list_runs, load_plan
from rlbox.record.act.journal import EVENTS_FILE
from rlbox.record.act.remains import end_remains
from rlbox.record.act.settle import settle_run
from rlbox.record.act.state import RUN_FILE
from rlbox.record.act.supervisor_file import load_supervisor, same_life

if TYPE_CHECKING:
    from rlbox.engine.act.docker import DockerEngine

ENDED = ("passed", "failed", "interrupted")
_OTHERS_S = 30.0
"""How long to wait for another command line that is settling runs."""

_FRESH_S = 60.0
"""The supervisor writes down every few seconds what its run uses."""

_LIVING = ("running", "paused", "restarting")
Connect = Callable[[str], "DockerEngine"]


@dataclass(frozen=True, kw_only=True)
class Reconciled:
    """What was found: who holds the disk now, and what could not be settled, by run, with the reason."""

    holder: Holder | None = None
    alive: tuple[str, ...] = ()
    unsettled: dict[str, str] = field(default_factory=dict)


def connect_engine(address: str) -> DockerEngine:
    """Return the engine at `address`; what it costs to import is paid only when there is a container to look at."""
    from rlbox.engine.act.docker import DockerEngine

    return DockerEngine.connect(address)


def reconcile(data: Path, me: Holder, connect: Connect = connect_engine) -> Reconciled:
    """Settle the dead runs of the data disk `data`.

    Parameters
    ----------
    me
        Who looks after the runs, for the lock.

    Raises
    ------
    NodeError
        The file system of the disk cannot lock.
    """
    if not _open_ends(data):
        return Reconciled(holder=disk_holder(data))
    until = time.monotonic() + _OTHERS_S
    while True:
        try:
            lock = take_disk(data, me)
        except LockHeld:
            holder = disk_holder(data)
            if holder and (holder.run or time.monotonic() > until):
                return Reconciled(holder=holder)
            continue
        try:
            return reconcile_locked(data, connect)
        finally:
            lock.leave()


def reconcile_locked(data: Path, connect: Connect = connect_engine) -> Reconciled:
    """As `reconcile`, for whoever holds the disk's lock; `alive` are runs whose container still runs."""
    alive: list[str] = []
    unsettled: dict[str, str] = {}
    forget_unfinished(data)
    notes = list_notes(data)
    folders = {folder.name: folder for folder in list_runs(data)}
    for run in [run for run in folders if run in notes or not _has_ended(folders[run])] + sorted(
        notes.keys() - folders
    ):
        try:
            if not _settle_one(data, data / RUNS / run, notes.get(run), connect):
                alive.append(run)
        except (RlboxError, OSError) as error:
            what = error.what if isinstance(error, RlboxError) else error.strerror
            unsettled[run] = f"cannot be settled now: {what}"
    return Reconciled(alive=tuple(alive), unsettled=unsettled)


def _open_ends(data: Path) -> bool:
    """Whether there is anything that may want settling; it is looked up without the lock."""
    return bool(list_notes(data)) or any(not _has_ended(run) for run in list_runs(data))


def _has_ended(run_dir: Path) -> bool:
    try:
        return json.loads((run_dir / RUN_FILE).read_bytes()).get("state") in ENDED
    except (OSError, ValueError, AttributeError):
        return False


def _settle_one(data: Path, run_dir: Path, note: ContainerNote | None, connect: Connect) -> bool:
    """Settle one run, its container and its processes; return False when its container still runs."""
    engine = connect(note.engine) if note else None
    status = engine.status(note.name) if engine and note else None
    if status in _LIVING:
        return False
    started = (note is not None and note.started) or load_supervisor(run_dir) is not None
    last = _container_word(engine, note.name, status, started) if engine and note else None
    if (run_dir / PLAN_FILE).is_file():
        with contextlib.suppress(FileNotFoundError):  # somebody removes the directory at this moment
            _write_end(run_dir, load_plan(run_dir), last)
    if engine and note:
        engine.remove(note.name)
        forget_note(data, note.run)
    return True


def _write_end(run_dir: Path, plan: RunPlan, last: LastWord | None) -> None:
    """End what is left of a run, and write its end down; one that never began stays as it is."""
    facts, life = load_supervisor(run_dir), probe_machine_life()
    elsewhere = plan.host not in ("", life.host)
    if elsewhere and _grows(run_dir):
        raise NodeError(f"it seems to go on at host {plan.host}, where its files grow")
    if plan.place == "here":
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


def _container_word(engine: DockerEngine, name: str, status: str | None, started: bool) -> LastWord | None:
    """Return what the engine knows of the end of a run's container; None when it had never started."""
    if status is None:
        return LastWord(end="removed", container=name) if started else None
    if status == "created":
        return None
    ended = engine.ended(name)
    if ended is None:
        return LastWord(end="removed", container=name)
    return container_end(name, ended.exit_code, out_of_memory=ended.out_of_memory, note=ended.output)
