"""What a place of runs is: what the rest of rlbox asks of one, and what is said of a run that is to start there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

    from rlbox.app import App
    from rlbox.job.job import Job
    from rlbox.job.params import Values
    from rlbox.job.plan import ClusterRun, RunPlan
    from rlbox.record.disk_hold import DiskHold
    from rlbox.record.host_record import CarrierNote
    from rlbox.record.ledger import Ledger
    from rlbox.record.settle import Carrier
    from rlbox.values import Secret


@dataclass(frozen=True, kw_only=True)
class Start:
    """A run that is ready to start at its place: `begin` does, and from then on it depends on nobody.

    What that returns tells whether its container, or the process that was started, is still there.
    """

    plan: RunPlan
    run_dir: Path
    begin: Callable[[DiskHold], Callable[[], bool]]


@dataclass(frozen=True, kw_only=True)
class Given:
    """A job and its parameters as they are at a place, and the cluster that this is, None for one machine."""

    job: Job
    values: Values
    cluster: ClusterRun | None = None


class ReadyPlace(Protocol):
    """A place made ready for the runs of one target on one data disk; `network` is that which its runs are on."""

    @property
    def network(self) -> str:
        """`own`, `host`, `bridge` or `none`."""

    @property
    def shares_ports(self) -> bool:
        """Whether the ports of its runs are those of this machine."""

    def plan(self, job: Job, values: Values, run_id: str, secrets: tuple[str, ...]) -> RunPlan:
        """Return the plan of a new run; it names a container if the run's processes are those of one."""

    def start(self, plan: RunPlan, run_dir: Path, secrets: Mapping[str, Secret]) -> Start:
        """Return the run, ready to start; what can be refused before anything starts is refused here."""


class RunPlace(Protocol):
    """One way to carry out runs; one that is not `near` is reached from here, and looked at there."""

    @property
    def near(self) -> bool:
        """Whether its runs, and their data disk, are on this machine."""

    def at(self, options: RunOptions) -> RunPlace:
        """Return the place as a command line means it."""

    def run_id(self) -> str:
        """Return the name of a new run where who watches over it chose that; else nothing."""

    def given(self, app: App, target: str, job: Job, values: Values) -> Given:
        """Return what a run of `job` is made of here; `disk` was asked before."""

    def disk(self, app: App, target: str, data: str | None, secrets: Mapping[str, Secret]) -> Ledger:
        """Return the data disk that new runs of `target` lie on.

        Where that is on another machine the whole command is carried out there, with the secrets, and this does not
        return.
        """

    def make(self, app: App, target: str) -> None:
        """Make what runs of `target` need here and what is missing: an engine, the image."""

    def ready(self, app: App, target: str, ledger: Ledger, gpus: str, need_gib: float | None = None) -> ReadyPlace:
        """Return the place made ready for runs of `target`, all checked; `gpus` is empty for the target's own.

        `need_gib` is the free space that a run needs on the data disk; None: what the target asks for.
        """

    def call(self, app: App, target: str, words: tuple[str, ...], data: str | None, gpus: str) -> int:
        """Carry out `rlbox WORDS` beside the stack of `target` at this place, and return its exit code."""

    def carrier(self, note: CarrierNote) -> Carrier:
        """Return the carrier that a note of this place names; its runs have none if it writes no notes."""

    def seek(self, plan: RunPlan, data: Path) -> CarrierNote | None:
        """Return the note of a carrier that says itself that it is that of a run of a data disk; None: there is none.

        What the plan says was written where programs of runs can write.
        """


class OneMachine:
    """What the places that are one machine have alike: a job is there as it was read, and a run has no name yet."""

    def at(self, options: RunOptions) -> Self:
        """Return the place; no command line says more of it."""
        return self

    def run_id(self) -> str:
        """Return nothing: a run's name is made where it is started."""
        return ""

    def given(self, app: App, target: str, job: Job, values: Values) -> Given:
        """Return the job as it is."""
        return Given(job=job, values=values)


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
