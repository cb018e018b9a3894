"""The runs of a data disk: who has the lock, what carries them out, how the dead ones ended, and their removal.

Every command about runs reconciles them first, and holds the lock meanwhile, so that no run can start. What carries a
run is known from this host's own records (`host_record.py`): so a container is found though its run directory was
removed. A run without such a record was started by another user or on another machine: its end is written down; nothing
that its own files name is ended or removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlbox.amounts import decimal_size_text
from rlbox.errors import LockHeld, MachineError, RlboxError, SpecError
from rlbox.i18n import _
from rlbox.job.plan import RunPlan
from rlbox.record.disk_lock import (
    LOCK_FILE,
    DiskLock,
    LockOwner,
    acquire_disk_lock,
    create_lock_held_error,
    find_lock_owner,
)
from rlbox.record.host_record import (
    ContainerRef,
    HostRunRecord,
    HostRunRecordStore,
    extract_status_and_passed_stages,
    load_outcome_from_host_record,
    mark_failed_if_outcome_differs,
)
from rlbox.record.reconcile import (
    RuntimeHandle,
    find_exit_info_unless_never_started,
    is_run_finished,
    kill_leftovers_and_ensure_final_state_if_begun,
)
from rlbox.record.run_dir import PLAN_FILE, load_plan_file, write_run_files
from rlbox.record.state import RunState, load_run_state_or_none
from rlbox.system.safe_files import (
    ensure_dir_without_parents,
    is_regular_file,
    list_directory_empty_if_missing,
    lstat_path,
    remove_tree,
    rename_path,
    walk_non_directories,
)

_RUNS = "runs"
_OWN = ".rlbox"
"""Folder of a data disk with what rlbox keeps there for itself: run directories that are being made."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""What names a run; a folder with another name was made by somebody else, perhaps to be shown as several lines."""
_OTHERS_S = 30.0
"""How long to wait for another command line that is settling runs."""


@dataclass(frozen=True, kw_only=True)
class RunsNotReconciled:
    """Who holds the disk now, runs whose container still lives, and why others could not be settled, by run."""

    lock_owner: LockOwner | None = None
    alive: tuple[str, ...] = ()
    unresolved: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunStore:
    """The runs of the data disk `data_dir`, a path without links."""

    data_dir: Path
    open_runtime: Callable[[ContainerRef], RuntimeHandle]

    def run_dir(self, run: str) -> Path:
        return self.data_dir / _RUNS / run

    def list_run_dirs_newest_first(self) -> list[Path]:
        folder, ages = self.data_dir / _RUNS, {}
        try:
            names = list_directory_empty_if_missing(folder)
        except OSError as error:
            raise _unreadable("the runs of the data disk", error) from error
        for entry in (folder / name for name in names if _NAME.fullmatch(name)):
            if is_regular_file(entry / PLAN_FILE) and (facts := lstat_path(entry / PLAN_FILE)):
                ages[entry] = facts.st_mtime
        return sorted(ages, key=lambda entry: ages[entry], reverse=True)

    def find_run_dir_or_latest(self, id_or_unique_prefix: str | None) -> Path:
        """Return that run's directory, or the latest one. Raises `SpecError`."""
        runs, where = self.list_run_dirs_newest_first(), str(self.data_dir / _RUNS)
        if id_or_unique_prefix is None:
            if not runs:
                step = _("rlbox run JOB, or look at another data disk with --data DIR")
                raise SpecError(_("no run yet"), where=where, next_step=step)
            return runs[0]
        found = [run for run in runs if run.name == id_or_unique_prefix] or [
            run for run in runs if id_or_unique_prefix and run.name.startswith(id_or_unique_prefix)
        ]
        if len(found) == 1:
            return found[0]
        what = _("{count} runs begin with {name!r}") if found else _("no run {name!r}")
        raise SpecError(what.format(count=len(found), name=id_or_unique_prefix), where=where, next_step="rlbox runs")

    def create_run_dir(self, plan: RunPlan, job_programs_dir: Path | None, extra_files: Mapping[str, str]) -> Path:
        """Write the run directory of `plan`; it is there whole or not at all. Raises `OSError`."""
        whole, draft = self.run_dir(plan.run_id), self._drafts_dir / plan.run_id
        try:
            for folder in (draft.parent.parent, draft.parent, whole.parent):
                ensure_dir_without_parents(folder)
            write_run_files(draft, plan, job_programs_dir, extra_files)
            rename_path(draft, whole)
        except OSError:
            with contextlib.suppress(OSError):
                remove_tree(draft)
            raise
        return whole

    def acquire_disk_lock(self, holder: LockOwner) -> DiskLock:
        return acquire_disk_lock(self.data_dir, holder)

    def find_lock_owner(self) -> LockOwner | None:
        return find_lock_owner(self.data_dir)

    def is_locked_by(self, run: str) -> bool:
        holder = self.find_lock_owner()
        return holder is not None and holder.run == run

    def require_unlocked_and_idle(self) -> None:
        holder = self.find_lock_owner()
        if holder is None and (run := next(filter(self.is_running_or_starting, self.load_container_refs_by_run()), "")):
            holder = LockOwner(run=run, what="its container runs")
        if holder:
            raise create_lock_held_error(holder, self.data_dir / LOCK_FILE)

    def is_running_or_starting(self, run: str) -> bool:
        if self.is_locked_by(run):
            return True
        runtime = self.find_container_runtime(run)
        return runtime is not None and runtime.status() in ("made", "living")

    def find_container_runtime(self, run: str) -> RuntimeHandle | None:
        note = self._records.read_or_empty(run).container_ref
        return self.open_runtime(note) if note else None

    def load_container_refs_by_run(self) -> dict[str, ContainerRef]:
        records = self._records
        return {run: note for run in records.list_run_ids() if (note := records.read_or_empty(run).container_ref)}

    def save_container_ref_and_plan(self, container_ref: ContainerRef, plan: RunPlan | None = None) -> None:
        known = self._records.read_or_empty(container_ref.run)
        record = dataclasses.replace(known, container_ref=container_ref, plan=plan or known.plan)
        self._records.write(container_ref.run, record)

    def load_plan_preferring_host_record(self, run_dir: Path) -> RunPlan:
        return _checked(self._records.read_or_empty(run_dir.name).plan or load_plan_file(run_dir), run_dir.name)

    def load_state_marked_failed_if_tampered(self, run_dir: Path) -> RunState | None:
        """Return the last state of a run, None when it never began; one that was changed after its end has failed."""
        state = load_run_state_or_none(run_dir)
        return mark_failed_if_outcome_differs(state, load_outcome_from_host_record(run_dir)) if state else None

    def clean_up_dead_runs_unless_run_holds_disk(self, lock_as: LockOwner) -> RunsNotReconciled:
        """`lock_as` is told to those who wait. Raises `MachineError` where the disk cannot lock."""
        if not self.load_container_refs_by_run() and all(map(is_run_finished, self.list_run_dirs_newest_first())):
            return RunsNotReconciled(lock_owner=self.find_lock_owner())
        until = time.monotonic() + _OTHERS_S
        while True:
            try:
                hold = self.acquire_disk_lock(lock_as)
            except LockHeld:
                holder = self.find_lock_owner()
                if holder and (holder.run or time.monotonic() > until):
                    return RunsNotReconciled(lock_owner=holder)
                continue
            try:
                return self.clean_up_dead_runs_already_locked()
            finally:
                hold.close_own_handle()

    def clean_up_dead_runs_already_locked(self) -> RunsNotReconciled:
        alive: list[str] = []
        unsettled: dict[str, str] = {}
        for left in (self._drafts_dir, self.trash_dir):  # whoever made or removed them is gone
            try:
                remove_tree(left)
            except OSError as error:
                raise _unreadable("what was left of runs that were being made or removed", error) from error
        notes, folders = self.load_container_refs_by_run(), {run.name: run for run in self.list_run_dirs_newest_first()}
        due = [run for run in folders if run in notes or not is_run_finished(folders[run])]
        for run in due + sorted(notes.keys() - folders):
            try:
                if not self._end_dead_run(run, self._records.read_or_empty(run)):
                    alive.append(run)
            except (RlboxError, OSError) as error:
                what = error.what if isinstance(error, RlboxError) else f"{error.strerror}: {error.filename}"
                unsettled[run] = _("cannot be settled now: {what}").format(what=what)
        return RunsNotReconciled(alive=tuple(alive), unresolved=unsettled)

    def _end_dead_run(self, run: str, known: HostRunRecord) -> bool:
        run_dir, last = self.run_dir(run), None
        plan = known.plan or (load_plan_file(run_dir) if is_regular_file(run_dir / PLAN_FILE) else None)
        if plan:
            _checked(plan, run)
        if known.outcome and plan and not known.container_ref and known.outcome.attempt == plan.attempt:
            return True  # it has ended, and its record was changed since
        runtime = self.find_container_runtime(run)
        if runtime and known.container_ref:
            status = runtime.status()
            if status == "living":
                return False
            last = find_exit_info_unless_never_started(runtime, status, known.container_ref, run_dir)
        state = None
        if plan and lstat_path(run_dir):
            with contextlib.suppress(FileNotFoundError):  # somebody removes the directory at this moment
                state = kill_leftovers_and_ensure_final_state_if_begun(run_dir, plan, last, _passed_before(plan, known))
        if runtime:
            runtime.remove_unless_gone_requiring_same_user()
        self._write_outcome(run, known, state)
        return True

    def _write_outcome(self, run: str, known: HostRunRecord, state: RunState | None) -> None:
        if lstat_path(self.run_dir(run)) is None:
            self._records.delete(run)
            return
        if not known.plan:
            return
        verdict = extract_status_and_passed_stages(state) if state else known.outcome
        self._records.write(run, dataclasses.replace(known, container_ref=None, outcome=verdict))

    @property
    def _records(self) -> HostRunRecordStore:
        return HostRunRecordStore(self.data_dir)

    @property
    def trash_dir(self) -> Path:
        return self.data_dir / _OWN / "removed"

    @property
    def _drafts_dir(self) -> Path:
        return self.data_dir / _OWN / "new"


def _checked(plan: RunPlan, run: str) -> RunPlan:
    if plan.run_id != run:
        raise SpecError(_("its plan belongs to {run_id}").format(run_id=plan.run_id), where=run)
    return plan


def _passed_before(plan: RunPlan, known: HostRunRecord) -> tuple[str, ...]:
    names = [stage.name for stage in plan.stages]
    kept = names[: names.index(plan.begin_at)] if plan.begin_at in names else []
    return tuple(name for name in kept if known.outcome and name in known.outcome.passed)


def _unreadable(what: str, error: OSError) -> MachineError:
    return MachineError(
        _("{what} cannot be looked at: {strerror}").format(what=what, strerror=error.strerror),
        where=str(error.filename or ""),
    )


def sum_file_sizes(folder: Path) -> int:
    """Links are not followed, and not counted."""
    return sum(facts.st_size for __, facts in walk_non_directories(folder) if stat.S_ISREG(facts.st_mode))


def delete_run_dir_and_host_record(run_store: RunStore, run: str) -> None:
    """Remove one run that has ended; whoever calls holds the disk. Raises `MachineError`.

    It is moved out of the list of runs first: one which is removed in part looks like no run, and the next command that
    reconciles removes it.
    """
    gone = run_store.trash_dir / run
    try:
        for folder in (gone.parent.parent, gone.parent):
            ensure_dir_without_parents(folder)
        if lstat_path(gone):  # a run of this name that a kill left here
            remove_tree(gone)
        rename_path(run_store.run_dir(run), gone)
        HostRunRecordStore(run_store.data_dir).delete(run)
        remove_tree(gone)
    except OSError as error:
        with contextlib.suppress(OSError):
            whole = lstat_path(run_store.run_dir(run)) is not None
            raise MachineError(
                _("run {run} cannot be removed: {strerror}").format(run=run, strerror=error.strerror)
                if whole
                else _("run {run} cannot be removed completely: {strerror}").format(run=run, strerror=error.strerror),
                where=str(error.filename or run_store.run_dir(run)),
                next_step=_("do it as the user whose files they are, or as root"),
            ) from error


@dataclass(frozen=True, kw_only=True)
class RemovalCandidate:
    """A run that may go: its state as `rlbox runs` says it, and when it began (Unix seconds, 0: unknown).

    `may_be_running`: it goes on, has the data disk, or could not be settled. `checkpoint_paths` are below the run.
    `kept_because` says why it stays; empty: it goes.
    """

    run: str
    job: str
    state: str
    started_unix_s: float = 0.0
    size_bytes: int = 0
    may_be_running: bool = False
    checkpoint_paths: tuple[str, ...] = ()
    kept_because: str = ""


def mark_unfinished_runs_kept(candidates: Iterable[RemovalCandidate]) -> list[RemovalCandidate]:
    return [
        dataclasses.replace(row, kept_because=_("it has not ended") if row.may_be_running else "") for row in candidates
    ]


def mark_latest_recent_and_unfinished_runs_kept(
    candidates: Sequence[RemovalCandidate], *, started_before_unix_s: float, remove_runs_with_checkpoints: bool
) -> list[RemovalCandidate]:
    by_age = sorted(candidates, key=lambda row: row.started_unix_s)
    newest = {row.job: row.run for row in by_age}
    passed = {row.job: row.run for row in by_age if row.state == "passed"}

    def find_reason_to_keep(row: RemovalCandidate) -> str:
        if row.may_be_running:
            return _("it has not ended")
        if newest[row.job] == row.run:
            return _("it is the latest of job {job}").format(job=row.job)
        if passed.get(row.job) == row.run:
            return _("it is the latest of job {job} that passed").format(job=row.job)
        if row.checkpoint_paths and not remove_runs_with_checkpoints:
            text = _("it holds {count} checkpoints: --checkpoints to remove them, too")
            return text.format(count=len(row.checkpoint_paths))
        return _("it is younger than --older") if row.started_unix_s > started_before_unix_s else ""

    return [dataclasses.replace(row, kept_because=find_reason_to_keep(row)) for row in candidates]


def format_removed_and_kept_runs(rows: Iterable[RemovalCandidate], *, done: bool) -> list[str]:
    lines: list[str] = []
    text = _("removed run {run}, {size}") if done else _("would remove run {run}, {size}")
    for row in rows:
        if row.kept_because:
            lines.append(_("run {run} is kept, since {reason}").format(run=row.run, reason=row.kept_because))
            continue
        lines.append(text.format(run=row.run, size=decimal_size_text(row.size_bytes)))
        lines += [_("  with checkpoint {path}").format(path=path) for path in row.checkpoint_paths]
    return lines
