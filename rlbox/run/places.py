"""The places where runs can take place, a line for each, and the command line for a run of one.

A place is the module of its name in `rlbox/run/`, which has the place itself as `PLACE`; `run/place.py` says what that
is. It is imported when a run takes place there, or is looked at; this module is read by every verb, so it imports and
makes next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from rlbox.errors import SpecError
from rlbox.i18n import _

if TYPE_CHECKING:
    from pathlib import Path

    from rlbox.job.plan import RunPlan
    from rlbox.record.host_record import ContainerRef
    from rlbox.record.settle import RuntimeHandle
    from rlbox.run.place import Backend

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
"""The target whose data disk a verb about runs looks at when none is named."""


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
