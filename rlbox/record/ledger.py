"""The ledger of a data disk: its runs, who holds it, what carries them out, and how the dead ones ended.

Every verb about runs settles them first. It holds the disk meanwhile, so that no run can start and no other can
settle; a disk that a run holds has nothing to settle but that run's predecessors, and those were settled before
it started.

What carries a run is known from this host's own records (`host_record.py`), so that a carrier is found again though
its run directory was removed, from a shell that speaks to another engine, without asking any engine when there is
nothing to find. A run without such a record was started by another user, on another machine or by an older rlbox: its
place is asked for a carrier of ours, and its end is written down; nothing that its own files name is ended or removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlbox.errors import LockHeld, NodeError, RlboxError, SpecError
from rlbox.i18n import _
from rlbox.job.plan import RunPlan
from rlbox.record.disk_hold import LOCK_FILE, NO_WORD, DiskHold, Holder, disk_holder, held_by, take_disk
from rlbox.record.folder import PLAN_FILE, fill_folder, load_plan
from rlbox.record.host_record import CarrierNote, HostRecord, HostRecords, kept_end
from rlbox.record.rebuild import last_state
from rlbox.record.settle import Carrier, carrier_word, has_ended, write_end
from rlbox.record.state import RUN_FILE, RunState, load_run_state
from rlbox.record.supervisor_file import SUPERVISOR_FILE, load_supervisor, supervisor_lives
from rlbox.record.verdict import believed, verdict_of
from rlbox.system.safe_files import is_file, list_names, make_directory, read_stat, remove_tree, rename_path

_RUNS = "runs"
_OWN = ".rlbox"
"""Folder of a data disk with what rlbox keeps there for itself: run directories that are being made."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""What names a run; a folder with another name was made by somebody else, perhaps to be shown as several lines."""
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
    """The runs of the data disk `folder`, a path without links.

    `reach` returns the carrier that a note names, as its place knows it; `seek` the note of the carrier that a place
    has for a run which this host has no record of, None when it has none.
    """

    folder: Path
    reach: Callable[[CarrierNote], Carrier]
    seek: Callable[[RunPlan, Path], CarrierNote | None] = lambda plan, folder: None

    def run_dir(self, run: str) -> Path:
        """Return where the directory of a run is, or would be."""
        return self.folder / _RUNS / run

    def runs(self) -> list[Path]:
        """Return the run directories, the latest first; `NodeError` when a link is in the place of their folder."""
        folder, ages = self.folder / _RUNS, {}
        try:
            names = list_names(folder)
        except OSError as error:
            raise _unreadable("the runs of the data disk", error) from error
        for entry in (folder / name for name in names if _NAME.fullmatch(name)):
            if is_file(entry / PLAN_FILE) and (facts := read_stat(entry / PLAN_FILE)):
                ages[entry] = facts.st_mtime
        return sorted(ages, key=lambda entry: ages[entry], reverse=True)

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
        where = str(self.folder / _RUNS)
        if name is None:
            step = "rlbox run JOB, or look at another data disk with --data DIR"
            raise SpecError(_("no run yet"), where=where, next_step=step)
        what = (
            _("{count} runs begin with {name!r}").format(count=len(found), name=name)
            if found
            else _("no run {name!r}").format(name=name)
        )
        raise SpecError(what, where=where, next_step="rlbox runs")

    def make(self, plan: RunPlan, programs: Path | None, extra: Mapping[str, str]) -> Path:
        """Write the run directory of `plan`, as `fill_folder` does, and return it; it is there whole or not at all.

        Raises
        ------
        OSError
            The disk is full or gone; what was written of it is removed.
        """
        whole, draft = self.run_dir(plan.run_id), self._drafts / plan.run_id
        try:
            for folder in (draft.parent.parent, draft.parent, whole.parent):
                make_directory(folder)
            fill_folder(draft, plan, programs, extra)
            rename_path(draft, whole)
        except OSError:
            with contextlib.suppress(OSError):
                remove_tree(draft)
            raise
        return whole

    def keep_project(self, run: str, folder: Path) -> None:
        """Write down from which project a run is started; a host that cannot knows it no more."""
        with contextlib.suppress(OSError):
            self._records.write(run, dataclasses.replace(self._records.read(run), project=str(folder)))

    def project_of(self, run: str) -> str:
        """Return the folder of the project that a run was started from; empty where this host does not know it."""
        return self._records.read(run).project

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
        """Return who holds the disk now, or None; where the disk does not say, the run that lives does."""
        holder = disk_holder(self.folder)
        if holder is None or holder.run or holder.what != NO_WORD:
            return holder
        return dataclasses.replace(holder, run=next((run.name for run in self.runs() if self._lives(run)), ""))

    def _lives(self, run_dir: Path) -> bool:
        """Whether what carries out a run lives: its supervisor says so itself, or the place of its carrier does."""
        facts, note = load_supervisor(run_dir), self._records.note(run_dir.name)
        try:
            return (facts is not None and supervisor_lives(run_dir, facts)) or (
                note is not None and self.reach(note).status() == "living"
            )
        except RlboxError:
            return False

    def held_by(self, run: str) -> bool:
        """Whether the supervisor of a run holds the disk."""
        holder = self.holder()
        return holder is not None and holder.run == run

    def require_free(self) -> None:
        """Refuse a disk that a run has; `LockHeld` says whose it is. Nothing is settled, or written."""
        holder = self.holder()
        if holder is None and (run := next((run for run in self.notes() if self.goes_on(run)), "")):
            holder = Holder(run=run, what="its container runs")
        if holder:
            raise held_by(holder, self.folder / LOCK_FILE, self.stage_of(holder.run) if holder.run else "")

    def goes_on(self, run: str) -> bool:
        """Whether a run goes on, by its hold of the disk, or by its carrier while that is still starting."""
        if self.held_by(run):
            return True
        carrier = self.carrier(run)
        return carrier is not None and carrier.status() in ("made", "living")

    def carrier(self, run: str) -> Carrier | None:
        """Return what carries a run out; None when that is but processes of this machine."""
        note = self._records.note(run)
        if note is None:
            with contextlib.suppress(SpecError):
                note = self._sought(_checked(load_plan(self.run_dir(run)), run))
        return self.reach(note) if note else None

    def notes(self) -> dict[str, CarrierNote]:
        """Return the notes of carriers by run id."""
        records = self._records
        return {run: note for run in records.runs() if (note := records.note(run))}

    def write_note(self, note: CarrierNote, plan: RunPlan | None = None) -> None:
        """Write down a carrier that is about to be made for `plan`, or that has started."""
        known = self._records.read(note.run)
        self._records.write(note.run, dataclasses.replace(known, note=note, plan=plan or known.plan))

    def plan(self, run_dir: Path) -> RunPlan:
        """Return the plan that a run was started with, as this host kept it, else as its directory holds it.

        Raises
        ------
        SpecError
            As `load_plan`; or it is the plan of another run.
        """
        return _checked(self._records.read(run_dir.name).plan or load_plan(run_dir), run_dir.name)

    def state(self, run_dir: Path, plan: RunPlan) -> RunState | None:
        """Return the last state of a run, None when it never began; one that was changed after its end has failed."""
        state = last_state(run_dir, plan)
        return believed(state, kept_end(run_dir)) if state else None

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
        for left in (self._drafts, self.removed):  # whoever made or removed them is gone
            try:
                remove_tree(left)
            except OSError as error:
                raise _unreadable("what was left of runs that were being made or removed", error) from error
        notes, folders = self.notes(), {run.name: run for run in self.runs()}
        due = [run for run in folders if run in notes or not has_ended(folders[run])]
        for run in due + sorted(notes.keys() - folders):
            try:
                if not self._settle_one(run, self._records.read(run)):
                    alive.append(run)
            except (RlboxError, OSError) as error:
                what = error.what if isinstance(error, RlboxError) else f"{error.strerror}: {error.filename}"
                unsettled[run] = f"cannot be settled now: {what}"
        return Settled(alive=tuple(alive), unsettled=unsettled)

    def _settle_one(self, run: str, known: HostRecord) -> bool:
        """Settle one run, its carrier and its processes; return False when its carrier still lives."""
        run_dir, last = self.run_dir(run), None
        plan = known.plan or (load_plan(run_dir) if is_file(run_dir / PLAN_FILE) else None)
        if plan:
            _checked(plan, run)
        if known.verdict and plan and not known.note and known.verdict.attempt == plan.attempt:
            return True  # it has ended, and its record was changed since
        note = known.note or self._sought(plan)
        carrier = self.reach(note) if note else None
        if carrier and note:
            status = carrier.status()
            if status == "living":
                return False
            last = carrier_word(carrier, status, note, run_dir)
        state = None
        if plan and read_stat(run_dir):
            with contextlib.suppress(FileNotFoundError):  # somebody removes the directory at this moment
                state = write_end(run_dir, plan, last, _passed_before(plan, known))
        if carrier:
            carrier.remove()
        self._keep(run, known, state)
        return True

    def _sought(self, plan: RunPlan | None) -> CarrierNote | None:
        """Return the note of the carrier of a run that this host has no record of, but which began."""
        began = plan and any(is_file(self.run_dir(plan.run_id) / name) for name in (SUPERVISOR_FILE, RUN_FILE))
        return self.seek(plan, self.folder) if plan and plan.container and began else None

    def _keep(self, run: str, known: HostRecord, state: RunState | None) -> None:
        """Keep how a run ended, if it was started from here; of one whose directory is gone nothing is kept."""
        if read_stat(self.run_dir(run)) is None:
            self._records.forget(run)
            return
        if not known.plan:
            return
        verdict = verdict_of(state) if state else known.verdict
        self._records.write(run, dataclasses.replace(known, note=None, verdict=verdict))

    @property
    def _records(self) -> HostRecords:
        return HostRecords(self.folder)

    @property
    def removed(self) -> Path:
        """Where runs are that are being removed."""
        return self.folder / _OWN / "removed"

    @property
    def _drafts(self) -> Path:
        """Where run directories are made, and renamed when they are whole."""
        return self.folder / _OWN / "new"


def _checked(plan: RunPlan, run: str) -> RunPlan:
    """Return the plan of a run; `SpecError` when it is that of another, as one that a program of the run wrote."""
    if plan.run_id != run:
        raise SpecError(_("its plan is that of {run_id}").format(run_id=plan.run_id), where=run)
    return plan


def _passed_before(plan: RunPlan, known: HostRecord) -> tuple[str, ...] | None:
    """Return the stages that had passed before this attempt, and do not run in it; None when this host knows no more
    of the run than its own files say."""
    if not known.plan:
        return None
    names = [stage.name for stage in plan.stages]
    kept = names[: names.index(plan.begin_at)] if plan.begin_at in names else []
    return tuple(name for name in kept if known.verdict and name in known.verdict.passed)


def _unreadable(what: str, error: OSError) -> NodeError:
    return NodeError(
        _("{what} cannot be looked at: {strerror}").format(what=what, strerror=error.strerror),
        where=str(error.filename or ""),
    )
