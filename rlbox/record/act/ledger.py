"""The ledger of a data disk: its runs, who holds it, what carries them out, and how the dead ones ended.

Every verb about runs settles them first. It holds the disk meanwhile, so that no run can start and no other can
settle; a disk that a run holds has nothing to settle but that run's predecessors, and those were settled before
it started.

The notes of carriers lie outside the run directories, so that a carrier is found again though its run directory was
removed, from a shell that speaks to another engine, without asking any engine when there is nothing to find.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlbox.errors import LockHeld, RlboxError, SpecError
from rlbox.files.act.folders import write_atomic
from rlbox.files.act.rows import read_table
from rlbox.job.plan import RunPlan
from rlbox.record.act.disk_hold import DiskHold, Holder, disk_holder, take_disk
from rlbox.record.act.folder import PLAN_FILE, fill_folder, load_plan
from rlbox.record.act.settle import Carrier, CarrierNote, carrier_word, has_ended, write_end
from rlbox.record.act.state import load_run_state

_RUNS = "runs"
_OWN = ".rlbox"
"""Folder of a data disk with what rlbox keeps there for itself: run directories that are being made, and notes."""
_OTHERS_S = 30.0
"""How long to wait for another command line that is settling runs."""


@dataclass(frozen=True, kw_only=True)
class Settled:
    """What was found: who holds the disk now, runs whose carrier still lives, and what could not be settled, by run,
    with the reason."""

    holder: Holder | None = None
    alive: tuple[str, ...] = ()
    unsettled: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The runs of the data disk `folder`; `reach` returns the carrier that a note names, as its place knows it."""

    folder: Path
    reach: Callable[[CarrierNote], Carrier]

    def run_dir(self, run: str) -> Path:
        """Return where the directory of a run is, or would be."""
        return self.folder / _RUNS / run

    def runs(self) -> list[Path]:
        """Return the run directories, the latest first."""
        folder = self.folder / _RUNS
        found = [entry for entry in folder.iterdir() if (entry / PLAN_FILE).is_file()] if folder.is_dir() else []
        return sorted(found, key=lambda entry: os.stat(entry / PLAN_FILE).st_mtime, reverse=True)

    def find(self, name: str | None) -> Path:
        """Return the run directory named `name` (a unique beginning will do), or the latest.

        Raises
        ------
        SpecError
            There is no such run, or the beginning fits more than one.
        """
        runs = self.runs()
        found = [run for run in runs if run.name == name] or [run for run in runs if name and run.name.startswith(name)]
        if name is None and runs:
            return runs[0]
        if len(found) == 1:
            return found[0]
        what = f"{len(found)} runs begin with {name!r}" if found else f"no run {name!r}" if name else "no run yet"
        raise SpecError(what, where=str(self.folder / _RUNS), next_step="rlbox runs")

    def make(self, plan: RunPlan, programs: Path | None, extra: Mapping[str, str]) -> Path:
        """Write the run directory of `plan`, as `fill_folder` does, and return it; it is there whole or not at all.

        Raises
        ------
        OSError
            The disk is full or gone; what was written of it is removed.
        """
        whole, draft = self.run_dir(plan.run_id), self._drafts / plan.run_id
        try:
            fill_folder(draft, plan, programs, extra)
            whole.parent.mkdir(exist_ok=True)
            draft.rename(whole)
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        return whole

    def stage_of(self, run: str) -> str:
        """Return the stage that a run is at now, in a word; empty when that cannot be told."""
        try:
            state = load_run_state(self.run_dir(run))
        except RlboxError:
            return ""
        return next((stage.name for stage in state.stages if stage.state in ("starting", "running")), "")

    def take(self, holder: Holder) -> DiskHold:
        """Return the hold of the disk, for `holder`; raises what `take_disk` raises."""
        return take_disk(self.folder, holder, stage_of=self.stage_of)

    def holder(self) -> Holder | None:
        """Return who holds the disk now, or None."""
        return disk_holder(self.folder)

    def held_by(self, run: str) -> bool:
        """Whether the supervisor of a run holds the disk."""
        holder = self.holder()
        return holder is not None and holder.run == run

    def goes_on(self, run: str) -> bool:
        """Whether a run goes on, by its hold of the disk, or by its carrier while that is still starting."""
        if self.held_by(run):
            return True
        carrier = self.carrier(run)
        return carrier is not None and carrier.status() in ("made", "living")

    def carrier(self, run: str) -> Carrier | None:
        """Return what carries a run out; None when that is but processes of this machine."""
        note = self.notes().get(run)
        return self.reach(note) if note else None

    def notes(self) -> dict[str, CarrierNote]:
        """Return the notes of carriers by run id."""
        found = {}
        for path in sorted(self._notes.glob("*.json")):
            try:
                note = CarrierNote(**read_table(path))
            except TypeError:
                continue
            found[note.run] = note
        return found

    def write_note(self, note: CarrierNote) -> None:
        """Write down a carrier that is about to be made, or that has started."""
        write_atomic(self._notes / f"{note.run}.json", json.dumps(dataclasses.asdict(note)))

    def settle(self, me: Holder) -> Settled:
        """Settle the dead runs: ended carriers are cleared away, what dead runs left is ended and written down.

        Parameters
        ----------
        me
            Who looks after the runs, told to those who wait.

        Raises
        ------
        NodeError
            The file system of the disk cannot lock.
        """
        if not self.notes() and all(has_ended(run) for run in self.runs()):  # looked up without the lock
            return Settled(holder=self.holder())
        until = time.monotonic() + _OTHERS_S
        while True:
            try:
                hold = self.take(me)
            except LockHeld:
                holder = self.holder()
                if holder and (holder.run or time.monotonic() > until):
                    return Settled(holder=holder)
                continue
            try:
                return self.settle_held()
            finally:
                hold.leave()

    def settle_held(self) -> Settled:
        """As `settle`, for whoever holds the disk."""
        alive: list[str] = []
        unsettled: dict[str, str] = {}
        shutil.rmtree(self._drafts, ignore_errors=True)  # whoever made them is gone
        notes, folders = self.notes(), {run.name: run for run in self.runs()}
        due = [run for run in folders if run in notes or not has_ended(folders[run])]
        for run in due + sorted(notes.keys() - folders):
            try:
                if not self._settle_one(run, notes.get(run)):
                    alive.append(run)
            except (RlboxError, OSError) as error:
                what = error.what if isinstance(error, RlboxError) else error.strerror
                unsettled[run] = f"cannot be settled now: {what}"
        return Settled(alive=tuple(alive), unsettled=unsettled)

    def _settle_one(self, run: str, note: CarrierNote | None) -> bool:
        """Settle one run, its carrier and its processes; return False when its carrier still lives."""
        run_dir, last = self.run_dir(run), None
        carrier = self.reach(note) if note else None
        if carrier and note:
            status = carrier.status()
            if status == "living":
                return False
            last = carrier_word(carrier, status, note, run_dir)
        if (run_dir / PLAN_FILE).is_file():
            with contextlib.suppress(FileNotFoundError):  # somebody removes the directory at this moment
                write_end(run_dir, load_plan(run_dir), last)
        if carrier:
            carrier.remove()
            (self._notes / f"{run}.json").unlink(missing_ok=True)
        return True

    @property
    def _drafts(self) -> Path:
        """Where run directories are made, and renamed when they are whole."""
        return self.folder / _OWN / "new"

    @property
    def _notes(self) -> Path:
        return self.folder / _OWN / "containers"
