"""The places where runs can take place, a line for each, and what the rest of rlbox asks of a place.

A place is the module of its name in `rlbox/run/`, which has the place itself as `PLACE`. It is imported when a run
takes place there, or is looked at.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol

from rlbox.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlbox.app import App
    from rlbox.job.job import Job
    from rlbox.job.params import Values
    from rlbox.job.plan import RunPlan
    from rlbox.record.act.disk_hold import DiskHold
    from rlbox.record.act.ledger import Ledger
    from rlbox.record.carrier import Carrier, CarrierNote
    from rlbox.values import Secret

PLACES = {
    "docker": "in a container of the target's image",
    "here": "on this machine, brought to the target's lock",
}
DEFAULT = next(iter(PLACES))


def place_named(name: str) -> RunPlace:
    """Return the place `name`; `SpecError` when there is none, as for a run of an rlbox that knows more of them."""
    if name not in PLACES:
        raise SpecError(f"unknown place {name!r}", next_step=f"choose one of: {', '.join(PLACES)}")
    place: RunPlace = importlib.import_module(f"rlbox.run.{name}").PLACE
    return place


def reach(note: CarrierNote) -> Carrier:
    """Return the carrier that a note names, as the place of its run knows it."""
    return place_named(note.place or DEFAULT).carrier(note)


class Start(Protocol):
    """A run that is ready to start at its place."""

    plan: RunPlan
    run_dir: Path

    def begin(self, hold: DiskHold) -> None:
        """Start it; from then on it depends on nobody."""

    def alive(self) -> bool:
        """Whether its container, or the process that was started, is still there."""


class ReadyPlace(Protocol):
    """A place made ready for the runs of one target on one data disk."""

    def plan(self, job: Job, values: Values, run_id: str, secrets: tuple[str, ...]) -> RunPlan:
        """Return the plan of a new run; it names a container if the run's processes are those of one."""

    def start(self, plan: RunPlan, run_dir: Path, secrets: Mapping[str, Secret]) -> Start:
        """Return the run, ready to start; what can be refused before anything starts is refused here."""


class RunPlace(Protocol):
    """One way to carry out runs."""

    def disk(self, app: App, target: str, data: str | None, secrets: Mapping[str, Secret]) -> Ledger:
        """Return the data disk that new runs of `target` lie on.

        Where that is on another machine the whole command is carried out there, with the secrets, and this does not
        return.
        """

    def ready(self, app: App, target: str, ledger: Ledger, gpus: str) -> ReadyPlace:
        """Return the place made ready for runs of `target`, all checked; `gpus` is empty for the target's own."""

    def call(self, app: App, target: str, words: tuple[str, ...], data: str | None, gpus: str) -> int:
        """Carry out `rlbox WORDS` beside the stack of `target` at this place, and return its exit code."""

    def carrier(self, note: CarrierNote) -> Carrier:
        """Return the carrier that a note of this place names; its runs have none if it writes no notes."""
