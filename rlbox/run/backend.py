"""The backends of runs: what the command line asks of one, and the command line for a run of one.

A backend is imported when a run takes place there, or is looked at; every command reads this module, so it imports next
to nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol

from rlbox.errors import SpecError
from rlbox.i18n import _

if TYPE_CHECKING:
    from pathlib import Path

    from rlbox.app import App
    from rlbox.engine.container import NetworkKind
    from rlbox.job.cluster_job import ResolvedJob
    from rlbox.job.job import Job
    from rlbox.job.params import ParamValues
    from rlbox.job.plan import RunPlan
    from rlbox.record.disk_lock import DiskLock
    from rlbox.record.host_record import ContainerRef
    from rlbox.record.reconcile import RuntimeHandle
    from rlbox.record.run_store import RunStore
    from rlbox.values import Secret

Place = Literal["docker", "here", "cluster"]
SingleMachinePlace = Literal["docker", "here"]

CLUSTER: Final = "cluster"
SINGLE_MACHINE_PLACES = ("docker", "here")
PLACES = (*SINGLE_MACHINE_PLACES, CLUSTER)
"""Names of the backends: a container of the target's image, this machine itself, a running cluster."""
_BACKENDS = {
    "docker": ("rlbox.run.docker", "DockerBackend"),
    "here": ("rlbox.run.host", "HostBackend"),
    CLUSTER: ("rlbox.run.cluster", "ClusterBackend"),
}
"""Module and class of each."""

IsRunningCheck = Callable[[], bool]

DEFAULT_PLACE = PLACES[0]
DEFAULT_TARGET = "local"
"""The target whose data disk a command about runs looks at when none is named."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `rlbox run`; a resumed run has its own `place`.

    `build_missing`: what the backend lacks is made first. `publish` names ports of services, besides those that the job
    publishes. `nodes` and `cluster` are empty for what the target says. `shift_ports` is added to each port of the job.
    """

    place: Place
    target: str | None = None
    data: str | None = None
    profiles: tuple[str, ...] = ()
    param_settings: Mapping[str, str] = field(default_factory=dict)
    env_file: str | None = None
    gpus: str = ""
    detach: bool = False
    first_stage: str = ""
    force: bool = False
    allow_unauthenticated: bool = False
    build_missing: bool = False
    publish: tuple[str, ...] = ()
    nodes: str = ""
    cluster: str = ""
    shift_ports: int = 0


class RunStarter(Protocol):
    @property
    def network_kind(self) -> NetworkKind: ...

    @property
    def shares_local_machine_ports(self) -> bool: ...

    def create_run_plan(self, job: Job, values: ParamValues, run_id: str, secret_names: tuple[str, ...]) -> RunPlan: ...

    def start(self, plan: RunPlan, run_dir: Path, secrets: Mapping[str, Secret], lock: DiskLock) -> IsRunningCheck:
        """Start a run that is written down; it depends on nobody from then on."""


class Backend(Protocol):
    """Where runs take place; how a run that is there is and ends is told by the `RuntimeHandle` of its record."""

    @property
    def is_data_disk_on_this_machine(self) -> bool: ...

    def open_store_or_run_remotely_and_exit(
        self, app: App, target: str, secrets_to_send: Mapping[str, Secret]
    ) -> RunStore:
        """Where the data disk is on another machine the command line is run there, and this does not return."""

    def adapt_job_if_on_cluster(self, app: App, target: str, job: Job, values: ParamValues) -> ResolvedJob: ...

    def check_and_prepare_run_start(
        self, app: App, target: str, run_store: RunStore, need_disk_gib: float | None
    ) -> RunStarter:
        """Raise what `rlbox run` refuses; without `need_disk_gib` the disk must have what the target asks for."""


def create_backend(place: str, options: RunOptions) -> Backend:
    """Raises `SpecError` when there is none: a run's record was written by an rlbox that has more."""
    module, name = _require_known(place)
    backend: Backend = getattr(importlib.import_module(module), name)(options)
    return backend


def open_container_runtime(ref: ContainerRef) -> RuntimeHandle:
    _require_known(ref.backend or DEFAULT_PLACE)
    runtime: RuntimeHandle = importlib.import_module("rlbox.run.docker").connect_to_engine_of_run_container(ref)
    return runtime


def _require_known(place: str) -> tuple[str, str]:
    if place not in _BACKENDS:
        raise SpecError(
            _("unknown place {name!r}").format(name=place), next_step=_("use the newer rlbox that started it")
        )
    return _BACKENDS[place]


def format_run_command_without_params(plan: RunPlan) -> str:
    if plan.cluster:
        return f"rlbox run {plan.job} {plan.cluster.options}"
    return f"rlbox run {plan.job}" + (f" --place {plan.place}" if plan.place != DEFAULT_PLACE else "")


def format_resume_command(plan: RunPlan) -> str:
    options = f" {plan.cluster.options}" if plan.cluster else ""
    return f"rlbox run --resume {plan.run_id}{options}"
