"""What every stage of a run has in common, how a stage says that it cannot go on, and the nodes of its cluster."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rlbox.amounts import duration_text
from rlbox.diagnose.cause import Cause, CauseKind, make_disk_full_cause, make_interrupted_cause
from rlbox.hang.evidence import WatchContext
from rlbox.i18n import _
from rlbox.job.names import EVIDENCE_FOLDER, ProblemOrEmpty
from rlbox.job.plan import RayNodeAddress, RunCluster, RunPlan, StagePlan
from rlbox.record.journal import Journal, explain_write_error
from rlbox.record.supervisor_file import describe_stop_requester
from rlbox.secrets.handover import SecretGrants
from rlbox.supervise.causes import explain_failed_start, explain_lost_node, explain_out_of_memory
from rlbox.supervise.sampler import ResourceSampler
from rlbox.system.files import free_bytes_or_0, is_enospc_or_edquot
from rlbox.system.limits import probe_cgroup_memory
from rlbox.system.poller import Poller
from rlbox.system.run_processes import RunProcesses, StopSignal

if TYPE_CHECKING:
    from rlbox.supervise.services import RunningService


_PAUSE_S, _CONNECT_S = 0.5, 3.0
_REFUSED, _SILENT, _SILENT_S = 2, 3, 10.0
"""How often in a row a node refuses before its Ray counts as ended; how often and how long it says nothing."""

_SETTLE_S, _LOOK_S = 4.0, 0.1
"""How long after a failed stage a node may still be found gone, and be named as what failed first."""


class _NodeProbe:
    def __init__(self, node: RayNodeAddress) -> None:
        self.node, self.good_at = node, time.monotonic()
        self._refused = self._silent = 0
        self._bad_at = 0.0

    def try_connection(self) -> None:
        begun = time.monotonic()
        try:
            socket.create_connection((self.node.address, self.node.port), _CONNECT_S).close()
        except ConnectionRefusedError:
            self._refused, self._silent = self._refused + 1, 0
        except OSError:
            self._bad_at = self._bad_at if self._silent else begun
            self._refused, self._silent = 0, self._silent + 1
        else:
            self._refused = self._silent = 0
            self.good_at = time.monotonic()

    def find_problem(self) -> ProblemOrEmpty:
        where = f"{self.node.address}:{self.node.port}"
        if self._refused >= _REFUSED:
            return _("its Ray has ended, nothing takes connections at {where} any more").format(where=where)
        silent_s = time.monotonic() - self._bad_at
        if self._silent >= _SILENT and silent_s >= _SILENT_S:
            problem = _("{where} has not answered for {duration}: it is off, or a cable to it is cut")
            return problem.format(where=where, duration=duration_text(silent_s))
        return ""


class NodeConnectionMonitor:
    def __init__(self, run: str, cluster: RunCluster | None) -> None:
        self._run, self._cluster = run, cluster
        self._nodes = tuple(map(_NodeProbe, cluster.nodes if cluster else ()))
        self._pollers = [
            Poller(partial(_NodeProbe.try_connection, probe), _PAUSE_S, lambda answer: False) for probe in self._nodes
        ]

    def find_lost_node_cause(self, stage: StagePlan, consequence: str = "") -> Cause | None:
        """Return the node that is gone, of several the one that was last heard of first."""
        gone = [(probe.good_at, probe.node, problem) for probe in self._nodes if (problem := probe.find_problem())]
        if not gone or self._cluster is None:
            return None
        _at, node, problem = min(gone, key=lambda entry: entry[0])
        return explain_lost_node(stage, node, problem, self._cluster, self._run, consequence)

    def wait_for_lost_node_cause(
        self, stage: StagePlan, consequence: str, is_stopped: Callable[[], bool]
    ) -> Cause | None:
        begun = time.monotonic()
        while any(probe.good_at < begun for probe in self._nodes) and time.monotonic() - begun < _SETTLE_S:
            if (cause := self.find_lost_node_cause(stage, consequence)) or is_stopped():
                return cause
            time.sleep(_LOOK_S)
        return self.find_lost_node_cause(stage, consequence)

    def close(self) -> None:
        for poller in self._pollers:
            poller.request_stop()


_FULL_BYTES = 1 << 20
_BY_DISK: frozenset[CauseKind] = frozenset({"exit", "service", "ray", "ready", "forbid", "require", "file", "program"})
_BY_MEMORY: frozenset[CauseKind] = frozenset({"exit", "service", "ray", "ready", "forbid", "silence"})

T = TypeVar("T")


class StageAborted(Exception):
    cause: Cause

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.what)
        self.cause = cause


@dataclass(frozen=True, kw_only=True)
class RetainedService:
    """A service that went on when its stage ended; nobody reads its pipe `output_fd` meanwhile."""

    service: RunningService
    stage: str
    output_fd: int | None


@dataclass(frozen=True, kw_only=True)
class StageContext:
    plan: RunPlan
    run_dir: Path
    journal: Journal
    processes: RunProcesses
    interrupt: StopSignal
    grants: SecretGrants
    nodes: NodeConnectionMonitor
    sampler: ResourceSampler
    retained: dict[str, RetainedService] = field(default_factory=dict)

    def create_hang_watch_context(self, stage: StagePlan) -> WatchContext:
        return WatchContext(
            stage=stage,
            evidence_dir=self.run_dir / stage.directory / EVIDENCE_FOLDER,
            list_process_names=lambda: {process.pid: process.name for process in self.processes.list_living_members()},
            record_event=partial(self.journal.record_event, stage.name),
            record_phase=lambda phase: self.journal.update_stage_and_log_state_change(stage.name, phase=phase),
            mask=self.journal.masks.mask_json,
            may_continue=lambda: not self.interrupt.name,
        )

    def raise_if_stopped_or_unrecordable(self) -> None:
        if self.interrupt.name:
            raise StageAborted(self.create_stop_cause())
        problem = self.journal.problem
        if not self.journal.was_run_dir_never_removed():
            raise StageAborted(self._make_removed_directory_cause())
        if problem:
            raise StageAborted(problem)

    def create_stop_cause(self) -> Cause:
        return make_interrupted_cause(describe_stop_requester(self.run_dir) or self.interrupt.name)

    def _make_removed_directory_cause(self) -> Cause:
        what = _("the run directory was removed while the run went on; its logs went with it")
        return Cause(kind="disk", what=what, where=str(self.run_dir))

    def explain_disk_error(self, error: OSError) -> Cause:
        if not self.journal.was_run_dir_never_removed():
            return self._make_removed_directory_cause()
        return explain_write_error(str(error.filename or self.run_dir), error, self.run_dir)

    def start_or_abort_stage(
        self, stage: StagePlan, service_or_main: str, argv_in_error: tuple[str, ...], start: Callable[[], T]
    ) -> T:
        try:
            return start()
        except OSError as error:
            reason = error.strerror or str(error)
            cause = explain_failed_start(stage, service_or_main, argv_in_error[0], reason)
            raise StageAborted(self.explain_disk_error(error) if is_enospc_or_edquot(error) else cause) from error

    def refine_cause_by_memory_and_disk(self, cause: Cause, oom_kills_before: int) -> Cause:
        if cause.kind != "interrupted" and not self.journal.was_run_dir_never_removed():
            return self._make_removed_directory_cause()
        memory = probe_cgroup_memory()
        if cause.kind in _BY_MEMORY and memory.kills > oom_kills_before:
            return explain_out_of_memory(cause, memory.limit_bytes)
        for folder in (self.run_dir, Path(self.plan.paths.data)):
            if cause.kind in _BY_DISK and folder.is_dir() and free_bytes_or_0(folder) < _FULL_BYTES:
                return make_disk_full_cause(str(folder), free_bytes_or_0(folder))
        return cause
