"""The backends of runs, a line for each: what rlbox asks of one, and the command line for a run of one.

A backend is the module of its name in `rlbox/run/`, as `BACKEND`. It is imported when a run takes place there, or is
looked at; this module is read by every command, so it imports and makes next to nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from rlbox.errors import SpecError
from rlbox.i18n import _

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

    from rlbox.app import App
    from rlbox.job.job import Job
    from rlbox.job.params import ParamValues
    from rlbox.job.plan import ClusterRun, RunPlan
    from rlbox.record.disk_lock import DiskLock
    from rlbox.record.host_record import ContainerRef
    from rlbox.record.reconcile import RuntimeHandle
    from rlbox.record.run_store import RunStore
    from rlbox.values import Secret


CLUSTER = "cluster"
PLACES = {
    "docker": "in a container of the target's image",
    "here": "on this machine, brought to the target's lock",
    CLUSTER: "on a cluster that stands, beside its head",
}
SINGLE_MACHINE_PLACES = tuple(name for name in PLACES if name != CLUSTER)
"""Those that are one machine."""

DEFAULT_PLACE = next(iter(PLACES))

DEFAULT_TARGET = "local"
"""The target whose data disk a command about runs looks at when none is named."""


def load_backend(name: str) -> Backend:
    """Return the place `name`; `SpecError` when there is none: a run's record was written by an rlbox that has more."""
    if name not in PLACES:
        raise SpecError(
            _("unknown place {name!r}").format(name=name), next_step=_("use the newer rlbox that started it")
        )
    place: Backend = importlib.import_module(f"rlbox.run.{name}").BACKEND
    return place


def rerun_command_line(plan: RunPlan) -> str:
    """Return the command line that starts the job of a run anew at its place."""
    if plan.cluster:
        return f"rlbox run {plan.job} {plan.cluster.options}"
    return f"rlbox run {plan.job}" + (f" --place {plan.place}" if plan.place != DEFAULT_PLACE else "")


def resume_command_line(plan: RunPlan) -> str:
    """Return the command line that takes a run up again."""
    options = f" {plan.cluster.options}" if plan.cluster else ""
    return f"rlbox run --resume {plan.run_id}{options}"


def open_runtime(note: ContainerRef) -> RuntimeHandle:
    """Return the carrier that a note names, as the place of its run knows it."""
    return load_backend(note.place or DEFAULT_PLACE).open_runtime(note)


def find_container(plan: RunPlan, data: Path) -> ContainerRef | None:
    """Return the note of what carries a run of the data disk `data` that this host has no record of; None: nothing."""
    return load_backend(plan.place).find_container(plan, data)


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A run that is ready to start at its place: `begin` does, and from then on it depends on nobody.

    What that returns tells whether its container, or the process that was started, is still there.
    """

    plan: RunPlan
    run_dir: Path
    start: Callable[[DiskLock], Callable[[], bool]]


@dataclass(frozen=True, kw_only=True)
class ResolvedJob:
    """A job and its parameters as they are at a place, and the cluster that this is, None for one machine."""

    job: Job
    values: ParamValues
    cluster: ClusterRun | None = None


class PreparedBackend(Protocol):
    """A place made ready for the runs of one target on one data disk; `network` is that which its runs are on."""

    @property
    def network(self) -> str:
        """`own`, `host`, `bridge` or `none`."""

    @property
    def shares_host_ports(self) -> bool:
        """Whether the ports of its runs are those of this machine."""

    def plan_run(self, job: Job, values: ParamValues, run_id: str, secrets: tuple[str, ...]) -> RunPlan:
        """Return the plan of a new run; it names a container if the run's processes are those of one."""

    def prepare_run(self, plan: RunPlan, run_dir: Path, secrets: Mapping[str, Secret]) -> PreparedRun:
        """Return the run, ready to start; what can be refused before anything starts is refused here."""


class Backend(Protocol):
    """One way to carry out runs; one that is not `near` is reached from here, and looked at there."""

    @property
    def is_local(self) -> bool:
        """Whether its runs, and their data disk, are on this machine."""

    def with_options(self, options: RunOptions) -> Backend:
        """Return the place as a command line means it."""

    def given_run_id(self) -> str:
        """Return the name of a new run where who watches over it chose that; else nothing."""

    def resolve_job(self, app: App, target: str, job: Job, values: ParamValues) -> ResolvedJob:
        """Return what a run of `job` is made of here; `disk` was asked before."""

    def open_data_disk(self, app: App, target: str, data: str | None, secrets: Mapping[str, Secret]) -> RunStore:
        """Return the data disk that new runs of `target` lie on.

        Where that is on another machine the whole command is carried out there, with the secrets, and this does not
        return.
        """

    def ensure_engine_and_image(self, app: App, target: str) -> None:
        """Make what runs of `target` need here and what is missing: an engine, the image."""

    def prepare(
        self, app: App, target: str, run_store: RunStore, gpus: str, need_gib: float | None = None
    ) -> PreparedBackend:
        """Return the place made ready for runs of `target`, all checked; `gpus` is empty for the target's own.

        `need_gib` is the free space that a run needs on the data disk; None: what the target asks for.
        """

    def run_rlbox(self, app: App, target: str, words: tuple[str, ...], data: str | None, gpus: str) -> int:
        """Carry out `rlbox WORDS` beside the stack of `target` at this place, and return its exit code."""

    def open_runtime(self, note: ContainerRef) -> RuntimeHandle:
        """Return the carrier that a note of this place names; its runs have none if it writes no notes."""

    def find_container(self, plan: RunPlan, data: Path) -> ContainerRef | None:
        """Return the note of a carrier that says itself that it is that of a run of a data disk; None: there is none.

        What the plan says was written where programs of runs can write.
        """


class SingleMachineBackend:
    """What the places that are one machine have alike: a job is there as it was read, and a run has no name yet."""

    def with_options(self, options: RunOptions) -> Self:
        """Return the place; no command line says more of it."""
        return self

    def given_run_id(self) -> str:
        """Return nothing: a run's name is made where it is started."""
        return ""

    def resolve_job(self, app: App, target: str, job: Job, values: ParamValues) -> ResolvedJob:
        return ResolvedJob(job=job, values=values)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is started: where, from which stage, left alone at once or followed, and with which values.

    `target` and `data` are as on the command line, None for what the job, the environment or the target says; `place`
    is a name of `run/places.py`, and a resumed run has its own. `build`: what the place lacks is made first. `publish`
    names ports of services, besides those that the job publishes. `nodes` and `cluster` are those of the place
    `cluster`, empty for what the target says. `shift_ports` is added to each of the job's ports.
    """

    place: str
    target: str | None = None
    data: str | None = None
    profiles: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    env_file: str | None = None
    gpus: str = ""
    detach: bool = False
    first_stage: str = ""
    force: bool = False
    open: bool = False
    build: bool = False
    publish: tuple[str, ...] = ()
    nodes: str = ""
    cluster: str = ""
    shift_ports: int = 0
