"""Refuse a run that does not fit, before anything of it starts."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path

from rlbox.amounts import GIB
from rlbox.app import App
from rlbox.engine.gpu_access import parse_gpus
from rlbox.errors import NodeError, SpecError
from rlbox.i18n import _
from rlbox.job.filler import Paths
from rlbox.job.job import Job
from rlbox.job.params import Values
from rlbox.job.plan import RunPlan
from rlbox.planner.judge import Lack, judge_fit
from rlbox.planner.nearest import Asked, nearest_fit
from rlbox.planner.needs import RunNeeds, needs_of
from rlbox.planner.paths import off_disk
from rlbox.planner.room import IDLE, Room, room_of
from rlbox.planner.view import refusal
from rlbox.system.files import free_bytes
from rlbox.system.gpu import probe_gpus
from rlbox.system.limits import total_memory
from rlbox.target.target import load_target


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """What a run needs, the room that there is, and what does not fit."""

    needs: RunNeeds
    room: Room
    lacks: tuple[Lack, ...]

    @property
    def need_gib(self) -> float | None:
        """What the data disk must have free, GiB: nothing more where it lacks that; None: the job does not say."""
        if any(lack.kind == "disk" for lack in self.lacks):
            return 0.0
        return self.needs.disk_bytes / GIB or None


def declared_room(app: App, target: str, gpus: str) -> Room:
    """Return the room that a target declares; `gpus` is what `--gpus` says, empty for the target's own."""
    spec = load_target(app.project, target).target
    hardware = spec.hardware
    wish = parse_gpus(gpus, hardware.gpus or (-1 if hardware.gpu else 0))
    return room_of(spec, len(wish.ids) or wish.count)


def measured_room(app: App, target: str, room: Room, folder: Path, gpus: str) -> Room:
    """Return `room` with what this machine has in the place of what its target declares; its own limits stay.

    `gpus` is what `--gpus` says; of a number the first GPUs are meant.
    """
    ids = parse_gpus(gpus, 0).ids
    cards = [gpu for gpu in probe_gpus() if gpu.total_bytes]
    chosen = [gpu for gpu in cards if str(gpu.index) in ids] or cards[: room.gpus if room.gpus > 0 else None]
    fullest = min(chosen, key=lambda gpu: gpu.total_bytes - gpu.memory_bytes, default=None)
    limit = load_target(app.project, target).target.run.memory_gib * GIB
    return dataclasses.replace(
        room,
        where=f"this machine, {folder}",
        told="here",
        card=float(fullest.total_bytes if fullest else room.card),
        taken=float(fullest.memory_bytes if fullest and fullest.memory_bytes > IDLE else 0),
        host=float(min(limit or total_memory(), total_memory())),
        disk=float(free_bytes(folder)),
    )


def fit_of(job: Job, values: Values, room: Room) -> Fit | None:
    """Return whether a run fits; None for a job that does not say what it needs."""
    needs = needs_of(job, values, room.card)
    return None if needs is None else Fit(needs=needs, room=room, lacks=judge_fit(needs, room))


def require_fit(app: App, job: Job, fit: Fit | None, wish: Asked, *, force: bool = False) -> None:
    """Refuse a run that does not fit: `NodeError` says what, where, and the nearest setting that does.

    What is computed may be wrong: with `force` it is only said.
    """
    if fit is None or not fit.lacks:
        return
    if force:
        app.say(f"warning: job {job.name} does not fit: {refusal(fit.lacks)}")
        return
    raise NodeError(
        _("job {job} does not fit: {refusal}").format(job=job.name, refusal=refusal(fit.lacks)),
        where=fit.room.where,
        next_step=_next(job, fit, wish),
    )


def require_again(app: App, job: Job, plan: RunPlan, settings: Mapping[str, str], *, force: bool = False) -> None:
    """Refuse to take a run up with parameters that do not fit; what it wrote is on the disk already.

    `plan` holds the `settings` of the command line that takes it up.
    """
    values = Values(profile=plan.profile, params=plan.params, origins=plan.origins)
    fit = fit_of(job, values, dataclasses.replace(declared_room(app, plan.target, plan.gpus), disk=0.0))
    wish = Asked(start=("run", "--resume", plan.run_id), settings=settings, base=values)
    require_fit(app, job, fit, wish, force=force)


def require_paths(job: Job, values: Values, paths: Paths) -> None:
    """Refuse paths of `--set` that are not on the data disk."""
    if found := off_disk(job, values, paths):
        shown = ", ".join(f"--set {name}={value}" for name, value in found.items())
        raise SpecError(
            _(
                "{shown}: not on the data disk {data}; the system disk is small, and a container's is lost with it"
            ).format(shown=shown, data=paths.data),
            next_step=_("name a path below {data}").format(data=paths.data),
        )


def _next(job: Job, fit: Fit, wish: Asked) -> str:
    if unsized := [lack for lack in fit.lacks if lack.kind == "size"]:
        name = unsized[0].text.partition(" ")[0]
        return _("--set {name}=N, its parameters in 10^9; 0: neither memory nor disk is judged").format(name=name)
    nearest = nearest_fit(job, wish, fit.room)
    if nearest:
        return _("the nearest that fits: rlbox {words}").format(words=shlex.join(nearest.words()))
    return _(
        "no profile of the job and nothing that it lets be turned fits: a larger machine, or another target (--target)"
    )
