"""A stage that failed, and what the machine and the run's processes look like at that moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlbox.diagnose.cause import Cause
from rlbox.diagnose.first_fatal import FatalPosition
from rlbox.doctor.ray_state import read_ray_state
from rlbox.job.plan import RunPlan, StagePlan
from rlbox.record.state import StageState
from rlbox.secrets.masks import SecretMasker
from rlbox.system.clock import utc_now
from rlbox.system.files import free_bytes
from rlbox.system.gpu import GpuStatus, probe_gpus
from rlbox.system.limits import CgroupMemory, probe_cgroup_memory
from rlbox.system.ports import find_port_holder
from rlbox.system.process_table import Process, probe_command_line, probe_resident_bytes

_SHARED_MEMORY = Path("/dev", "shm")


@dataclass(frozen=True, kw_only=True)
class ProcessSnapshot:
    """One process of the run; `command` is its whole command line."""

    pid: int
    parent: int
    state: str
    resident_bytes: int
    command: str


@dataclass(frozen=True, kw_only=True)
class MachineSnapshot:
    """The facts of one moment; `ports` maps `name number` to who listens (empty: nobody).

    `ray` is what the head of the stage's Ray job says, empty for a stage without one.
    """

    taken_at: str
    processes: tuple[ProcessSnapshot, ...]
    memory: CgroupMemory
    free_bytes: Mapping[str, int]
    ports: Mapping[str, str]
    gpus: tuple[GpuStatus, ...] = ()
    ray: Mapping[str, Any] = field(default_factory=dict)


def probe_snapshot(plan: RunPlan, stage: StagePlan, run_dir: Path, processes: Iterable[Process]) -> MachineSnapshot:
    """Look at everything that is quick to look at; the stage may still be running."""
    ports = {name: number for service in stage.services for name, number in service.ports.items()}
    return MachineSnapshot(
        taken_at=utc_now(),
        processes=tuple(_process_snapshot(process) for process in processes),
        memory=probe_cgroup_memory(),
        free_bytes={str(folder): free_bytes(folder) for folder in (run_dir, Path(plan.paths.data), _SHARED_MEMORY)},
        ports={f"{name} {number}": find_port_holder(number) for name, number in ports.items()},
        gpus=probe_gpus(),
        ray=read_ray_state(stage.ray) if stage.ray else {},
    )


def _process_snapshot(process: Process) -> ProcessSnapshot:
    return ProcessSnapshot(
        pid=process.pid,
        parent=process.parent,
        state=process.state,
        resident_bytes=probe_resident_bytes(process.pid),
        command=probe_command_line(process.pid) or process.name,
    )


@dataclass(frozen=True, kw_only=True)
class StageFailure:
    """A stage that failed, nothing of it being left; `state` is what `run.json` says of it.

    `fatals` has the first fatal line of each log that holds one, by the log's path below the run directory. `snapshot`
    is from the moment at which it failed, `given` the variables of its secrets, without their values.
    """

    run_dir: Path
    plan: RunPlan
    stage: StagePlan
    state: StageState
    cause: Cause
    started_at: str
    ended_at: str
    fatals: Mapping[str, FatalPosition]
    snapshot: MachineSnapshot | None
    masks: SecretMasker
    given: Mapping[str, str] = field(default_factory=dict)
