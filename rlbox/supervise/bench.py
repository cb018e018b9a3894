"""What every stage of a run is carried out with, and how a stage says that it cannot go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rlbox.diagnose.cause import (
    Cause,
    CauseKind,
    make_disk_full_cause,
    make_interrupted_cause,
    make_removed_directory_cause,
    make_unwritable_directory_cause,
)
from rlbox.hang.context import Watched
from rlbox.job.names import EVIDENCE_FOLDER
from rlbox.job.plan import RunPlan, StagePlan
from rlbox.record.journal import Journal
from rlbox.record.supervisor_file import read_stop_request
from rlbox.secrets.handover import SecretGrants
from rlbox.supervise.causes import missing_program, out_of_memory
from rlbox.supervise.nodes import NodeMonitor
from rlbox.supervise.pace_watch import StarvationMonitor
from rlbox.system.files import free_bytes, is_disk_full
from rlbox.system.interrupt import StopSignal
from rlbox.system.limits import probe_cgroup_memory
from rlbox.system.processes import RunProcesses

if TYPE_CHECKING:
    from rlbox.supervise.services import RunningService

_FULL_BYTES = 1 << 20
_BY_DISK: frozenset[CauseKind] = frozenset({"exit", "service", "ray", "ready", "forbid", "require", "file", "program"})
_BY_MEMORY: frozenset[CauseKind] = frozenset({"exit", "service", "ray", "ready", "forbid", "silence"})

T = TypeVar("T")


class StageStopped(Exception):
    """The stage cannot go on."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.what)
        self.cause = cause


@dataclass(frozen=True, kw_only=True)
class RetainedService:
    """A service that went on when its stage ended; `output` is the end of its pipe, which nobody reads meanwhile."""

    service: RunningService
    stage: str
    output: int


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """The plan of the run, where it is recorded, what holds its processes, and what these are given of its secrets.

    `kept` are the services that wait for the next stage, by name.
    """

    plan: RunPlan
    run_dir: Path
    journal: Journal
    processes: RunProcesses
    interrupt: StopSignal
    grants: SecretGrants
    starvation: StarvationMonitor
    nodes: NodeMonitor
    retained: dict[str, RetainedService] = field(default_factory=dict)

    def watch_context(self, stage: StagePlan) -> Watched:
        """Return what the watch over hangs is to know of a stage."""
        return Watched(
            stage=stage,
            folder=self.run_dir / stage.directory / EVIDENCE_FOLDER,
            members=lambda: {process.pid: process.name for process in self.processes.members()},
            event=partial(self.journal.event, stage.name),
            enter=lambda phase: self.journal.change_stage(stage.name, phase=phase),
            hide=self.journal.masks.tree,
            going_on=lambda: not self.interrupt.name,
        )

    def check_not_stopped(self) -> None:
        """Raise `StageStopped` when the user asked to stop, or when nothing can be recorded any more."""
        if self.interrupt.name:
            raise StageStopped(self.stop_cause())
        if not self.journal.directory_exists():
            raise StageStopped(make_removed_directory_cause(str(self.run_dir)))
        if self.journal.problem:
            there = self.journal.directory_exists(now=True)
            raise StageStopped(self.journal.problem if there else make_removed_directory_cause(str(self.run_dir)))

    def stop_cause(self) -> Cause:
        """Return the cause of a run that was asked to stop: by whom, where that is written, else by which signal."""
        return make_interrupted_cause(read_stop_request(self.run_dir) or self.interrupt.name)

    def disk_cause(self, error: OSError) -> Cause:
        """Return the cause behind a file of the run that cannot be written."""
        if not self.journal.directory_exists(now=True):
            return make_removed_directory_cause(str(self.run_dir))
        if is_disk_full(error):
            return make_disk_full_cause(str(self.run_dir), free_bytes(self.run_dir))
        return make_unwritable_directory_cause(str(error.filename or self.run_dir), error.strerror or str(error))

    def start_part(self, stage: StagePlan, part: str, argv: tuple[str, ...], start: Callable[[], T]) -> T:
        """Return what `start` did for a part of a stage; raise `StageStopped` when its program could not be started."""
        try:
            return start()
        except OSError as error:
            if is_disk_full(error):
                raise StageStopped(self.disk_cause(error)) from error
            raise StageStopped(missing_program(stage, part, argv[0], error.strerror or str(error))) from error

    def refine_cause(self, cause: Cause, kills_before: int) -> Cause:
        """Name what the stage ran into: a run directory that is gone, an exhausted memory limit, a full disk."""
        if cause.kind != "interrupted" and not self.journal.directory_exists(now=True):
            return make_removed_directory_cause(str(self.run_dir))
        memory = probe_cgroup_memory()
        if cause.kind in _BY_MEMORY and memory.kills > kills_before:
            return out_of_memory(cause, memory.limit_bytes)
        for folder in (self.run_dir, Path(self.plan.paths.data)):
            if cause.kind in _BY_DISK and folder.is_dir() and free_bytes(folder) < _FULL_BYTES:
                return make_disk_full_cause(str(folder), free_bytes(folder))
        return cause
