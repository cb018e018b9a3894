"""What the machine and the run's processes look like at the moment a stage fails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlbox.act.command import run_command
from rlbox.act.journal import free_bytes
from rlbox.act.memory import MemoryFacts, probe_memory
from rlbox.act.ports import probe_port
from rlbox.act.process_table import Process, probe_command_line, probe_resident_bytes
from rlbox.act.run_state import utc_now
from rlbox.errors import RlboxError
from rlbox.plan.run import RunPlan, StagePlan
from rlbox.values import Command

_SHARED_MEMORY = Path("/dev", "shm")
_PACKAGES_S = 30.0
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
    """The facts of one moment; `ports` maps `name number` to who listens (empty: nobody)."""

    taken_at: str
    processes: tuple[ProcessFacts, ...]
    memory: MemoryFacts
    free_bytes: Mapping[str, int]
    ports: Mapping[str, str]


def probe_snapshot(plan: RunPlan, stage: StagePlan, run_dir: Path, processes: Iterable[Process]) -> Snapshot:
    """Look at everything that is quick to look at; the stage may still be running."""
    ports = {name: number for service in stage.services for name, number in service.ports.items()}
    return Snapshot(
        taken_at=utc_now(),
        processes=tuple(_process_facts(process) for process in processes),
        memory=probe_memory(),
        free_bytes={str(folder): free_bytes(folder) for folder in (run_dir, Path(plan.paths.data), _SHARED_MEMORY)},
        ports={f"{name} {number}": probe_port(number) for name, number in ports.items()},
    )


def probe_packages(python: str) -> tuple[str, ...]:
    """Return `name==version` of everything installed for the interpreter `python`, sorted; empty when it fails."""
    try:
        outcome = run_command(Command(argv=(python, "-c", _LIST_PACKAGES), timeout_s=_PACKAGES_S))
    except (RlboxError, OSError):
        return ()
    return tuple(outcome.stdout.split()) if outcome.ok else ()


def _process_facts(process: Process) -> ProcessFacts:
    return ProcessFacts(
        pid=process.pid,
        parent=process.parent,
        state=process.state,
        resident_bytes=probe_resident_bytes(process.pid),
        command=probe_command_line(process.pid) or process.name,
    )
