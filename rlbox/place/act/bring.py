"""A place on this machine where a target's stages run without a container: found, planned, brought to the lock."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rlbox.app import App
from rlbox.doctor.act.fix_checks import PLACE, probe_fixes
from rlbox.doctor.fix_checks import checks_of
from rlbox.engine.act.data_disk import check_disk
from rlbox.errors import NodeError
from rlbox.files.act.rows import read_table
from rlbox.findings import Finding
from rlbox.image.plan import ImagePlan
from rlbox.place.act.apply import NOTHING, Applied, lay_back
from rlbox.place.act.facts import read_record
from rlbox.place.act.prepare import ApplyWish, Prepared, carry_out, look, prepare, with_room
from rlbox.place.act.whereabouts import busy, find_layout, forget_place
from rlbox.place.changes import ApplyPlan
from rlbox.place.layout import Layout
from rlbox.spec.project import PACKAGE
from rlbox.values import LOCK_IN_IMAGE, VENV

_SHADOWING = ("PYTHONHOME", "PYTHONPATH", "PYTHONOPTIMIZE", "VIRTUAL_ENV", "UV_CONSTRAINT", "PIP_CONSTRAINT")
_BYTECODE = "PYTHONPYCACHEPREFIX"
# Without bytecode each of vLLM's three processes compiles all that it imports: minutes.
_SLOWING = ("PYTHONDONTWRITEBYTECODE", _BYTECODE)
_CHECKS_S = 60.0


@dataclass(frozen=True, kw_only=True)
class BroughtPlace:
    """Where stages run: their interpreter, the words in front of a program that is to have the target's environment
    (they end in an exec, so its process id is theirs), and the environment to start them in."""

    python: Path
    words: tuple[str, ...]
    env: Mapping[str, str]
    layout: Layout


def prepare_place(app: App, image: ImagePlan, folder: Path) -> BroughtPlace:
    """Return the place where runs of a target take place on this machine, at the target's lock.

    It is where `rlbox apply` brought the target, else a folder of rlbox's cache; a container of the target's own image
    is one as it stands. The machine's own paths are not changed by a run: that is for `rlbox apply`.

    Parameters
    ----------
    folder
        The data disk.

    Raises
    ------
    SpecError
        The lock is missing or stale.
    NodeError
        The machine is not at the lock, and only `rlbox apply` may bring it there.
    """
    layout = find_layout(image.target, folder)
    if not layout.prefix and read_record(layout) is None:
        _check_image(image)
        return place_at(layout)
    prepared = prepare(app, image, layout)
    with busy(layout):
        plan = look(prepared, "a run installs none")
        if plan.steps and not layout.prefix:
            raise _not_at_lock(image.target, layout, plan)
        if plan.steps:
            app.say(f"bringing {layout.prefix} to the lock of target {image.target}")
            carry_out(app, prepared, plan, ApplyWish())
    return place_at(layout)


def place_at(layout: Layout) -> BroughtPlace:
    """Return the place of a layout that is at its lock; what would shadow the stack, or slow it, is not handed on."""
    env = {name: text for name, text in os.environ.items() if name not in (*_SHADOWING, *_SLOWING)}
    if not os.access(Path(layout.python).parents[1] / "lib", os.W_OK):
        env[_BYTECODE] = f"{layout.data}/cache/bytecode/here"
    home = str(PACKAGE.parent)
    if home in os.environ.get("PYTHONPATH", "").split(os.pathsep):  # rlbox itself is found by it
        env["PYTHONPATH"] = home
    words = ("sh", f"{layout.own}/libexec/entrypoint.sh")
    return BroughtPlace(python=Path(layout.python), words=words, env={**env, PLACE: layout.own}, layout=layout)


def bring_target(
    app: App, image: ImagePlan, layout: Layout, wish: ApplyWish, *, only_look: bool
) -> tuple[Prepared, ApplyPlan, Applied]:
    """Bring a target to this machine; return what is wanted, what was lacking at the last look, and what was done.

    Parameters
    ----------
    only_look
        Change nothing.
    """
    prepared = prepare(app, image, layout)
    roomy = with_room(prepared, layout)
    if roomy != layout:
        app.say(f"{layout.at('/opt')} is on a small disk: the environment goes to {roomy.venv}")
        prepared = prepare(app, image, roomy)
    if only_look:
        return prepared, look(prepared, wish.why_no_packages), NOTHING
    check_disk(Path(layout.data), 0.0, create=image.container.create)
    with busy(layout):
        plan, done = look(prepared, wish.why_no_packages), NOTHING
        if "packages" in plan.kinds:  # they decide which fixes are there whole
            only = tuple(step for step in plan.steps if step.kind == "packages")
            done = carry_out(app, prepared, replace(plan, steps=only), wish)
            prepared = prepare(app, image, roomy)
            plan = look(prepared, done.left[0].reason if done.left else "")
        if plan.steps:
            done = done.then(carry_out(app, prepared, plan, wish))
    return prepared, plan, done


def take_away(app: App, target: str, layout: Layout) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Lay everything back as it was; return the state in a word, the paths that it is about, and what is to say.

    Raises
    ------
    NodeError
        What was laid there is another target.
    """
    record = read_record(layout)
    if record is None:
        return "unchanged", (), ()
    if record.target != target:
        raise NodeError(
            f"what was laid here is target {record.target}",
            where=layout.record,
            next_step=f"rlbox apply {record.target} --remove",
        )
    paths = (*record.laid, *record.parts, *([layout.at(VENV)] if record.environment else []))
    if app.dry_run:
        return "laid", paths, ()
    with busy(layout):
        notes = lay_back(layout, lambda path: app.say(path) if app.verbosity > 0 else None)
    forget_place(target, layout)
    return "removed", paths, notes


def check_place(layout: Layout) -> tuple[int, tuple[Finding, ...]]:
    """Return how many fixes have checks, and a finding for each whose check fails in the place's environment."""
    manifest = read_table(Path(layout.own, "share/fixes.json"))
    return len(checks_of(manifest, "doctor")), probe_fixes("doctor", manifest, _CHECKS_S, layout.own)


def _check_image(image: ImagePlan) -> None:
    """Refuse a container of an image that is of another target, or of another lock."""
    found = read_table(Path(LOCK_IN_IMAGE))
    text = Path(LOCK_IN_IMAGE).read_bytes()
    if hashlib.sha256(text).hexdigest() != image.lock_checksum:
        raise NodeError(
            f"this machine is a container of an image of target {found.get('target')!r} by another lock",
            where=LOCK_IN_IMAGE,
            next_step=f"start a container of {image.tag}, or run a job of the image's own target",
        )


def _not_at_lock(target: str, layout: Layout, plan: ApplyPlan) -> NodeError:
    record = read_record(layout)
    other = (
        f", and it was brought there for the data disk {record.data}" if record and record.data != layout.data else ""
    )
    return NodeError(
        f"this machine is not at the lock of target {target}: {len(plan.steps)} changes are due{other}",
        where=layout.record,
        next_step=f"rlbox apply {target} --data {layout.data}",
    )
