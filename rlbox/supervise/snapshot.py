"""What the machine and the run's processes look like at the moment a stage fails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlbox.doctor.act.ray_facts import probe_ray
from rlbox.errors import RlboxError
from rlbox.job.plan import RunPlan, StagePlan
from rlbox.machine.act.clock import utc_now
from rlbox.machine.act.command import run_command
from rlbox.machine.act.gpu import probe_gpus
from rlbox.machine.act.memory import MemoryFacts, probe_memory
from rlbox.machine.act.ports import probe_port
from rlbox.machine.act.process_table import Process, probe_command_line, probe_resident_bytes
from rlbox.machine.counters import GpuFacts
from rlbox.record.act.journal import free_bytes
from rlbox.values import Command

_SHARED_MEMORY = Path("/dev", "shm")
_PACKAGES_S = 10.0
_LIST_PACKAGES = (
    "import importlib.metadata as m\n"
    "print('\\n'.join(sorted({f\"{d.metadata['Name']}=={d.version}\" for d in m.distributions()})))"
)


@dataclass(frozen=True, kw_only=True)
class ProcessFacts:
    """One process of the run; `command` is its whole command line."""

    pid: int
    parent: int
    state: str
    resident_bytes: int
    command: str


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The facts of one moment; `ports` maps `name number` to who listens (empty: nobody).

    `ray` is what the head of the stage's Ray job says, empty for a stage without one.
    """

    taken_at: str
    processes: tuple[ProcessFacts, ...]
    memory: MemoryFacts
    free_bytes: Mapping[str, int]
    ports: Mapping[str, str]
    gpus: tuple[GpuFacts, ...] = ()
    ray: Mapping[str, Any] = field(default_factory=dict)


def probe_snapshot(plan: RunPlan, stage: StagePlan, run_dir: Path, processes: Iterable[Process]) -> Snapshot:
    """Look at everything that is quick to look at; the stage may still be running."""
    ports = {name: number for service in stage.services for name, number in service.ports.items()}
    return Snapshot(
        taken_at=utc_now(),
        processes=tuple(_process_facts(process) for process in processes),
        memory=probe_memory(),
        free_bytes={str(folder): free_bytes(folder) for folder in (run_dir, Path(plan.paths.data), _SHARED_MEMORY)},
        ports={f"{name} {number}": probe_port(number) for name, number in ports.items()},
        gpus=probe_gpus(),
        ray=probe_ray(stage.ray) if stage.ray else {},
    )


def probe_packages(python: str) -> tuple[str, ...]:
    """Return `name==version` of everything installed for the interpreter `python`, sorted; empty when it fails.

    Of a virtual environment the names of its folders tell, a hundred times faster than the interpreter would.
    """
    folders = _own_packages(Path(python).parent.parent)
    if folders:
        rows = (path.name.removesuffix(".dist-info").rpartition("-") for path in folders)
        return tuple(sorted({f"{name}=={version}" for name, _, version in rows}))
    try:
        outcome = run_command(Command(argv=(python, "-c", _LIST_PACKAGES), timeout_s=_PACKAGES_S))
    except (RlboxError, OSError):
        return ()
    return tuple(outcome.stdout.split()) if outcome.ok else ()


def _own_packages(prefix: Path) -> list[Path]:
    """Return the folders that describe the packages of a virtual environment which sees no others."""
    try:
        config = (prefix / "pyvenv.cfg").read_text("utf-8", "replace").replace(" ", "").lower()
    except OSError:
        return []
    shared = "include-system-site-packages=true" in config
    return [] if shared else list(prefix.glob("lib/python3*/site-packages/*.dist-info"))


def _process_facts(process: Process) -> ProcessFacts:
    return ProcessFacts(
        pid=process.pid,
        parent=process.parent,
        state=process.state,
        resident_bytes=probe_resident_bytes(process.pid),
        command=probe_command_line(process.pid) or process.name,
    )
