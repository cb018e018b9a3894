"""A place on this machine where a target's stages run without a container: found, planned, brought to the lock."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlbox.doctor.act.fix_checks import PLACE, probe_fixes, read_table
from rlbox.doctor.fix_checks import checks_of
from rlbox.errors import NodeError, SpecError, WorkFailed
from rlbox.files.act.folders import cache_folder, write_atomic
from rlbox.files.act.lock import hold
from rlbox.image.plan import part_files
from rlbox.place.act.apply import Applied, Supplies, carry_out_apply
from rlbox.place.act.facts import check_layout, free_bytes, installed_debs, probe_apply, read_record, there
from rlbox.place.act.stack import Supply
from rlbox.place.changes import ApplyPlan, PathChange, choose_venv, plan_apply
from rlbox.place.layout import Layout, check_prefix
from rlbox.place.wanted import Wanted, at_data, plan_wanted
from rlbox.spec.project import PACKAGE, Project
from rlbox.store.act.objects import Store, store_folder
from rlbox.target.artifact import Artifact, artifacts
from rlbox.values import LOCK_IN_IMAGE, VENV

if TYPE_CHECKING:
    from rlbox.app import App
    from rlbox.findings import Finding
    from rlbox.image.plan import ImagePlan
    from rlbox.target.lock import Lock

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


@dataclass(frozen=True, kw_only=True)
class ApplyWish:
    """What the command line asked for."""

    sources: str = ""
    offline: bool = False
    packages: bool = True

    @property
    def why_no_packages(self) -> str:
        """Why apt is left alone; empty when it need not be."""
        return "" if self.packages else "--no-packages was given"


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A target as this machine should have it, and what its lock says."""

    wanted: Wanted
    lock: Lock
    image: ImagePlan


def prepare_place(app: App, image: ImagePlan, folder: Path, wish: ApplyWish | None = None) -> BroughtPlace:
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
            carry_out(app, prepared, plan, wish or ApplyWish())
    return place_at(layout)


def find_layout(target: str, folder: Path) -> Layout:
    """Return where a target is, or would be, on this machine: as applied, as its own image, or in the cache."""
    data = check_prefix(str(folder), "--data")
    for prefix in (_pointer(target), ""):
        layout = Layout(prefix=prefix, data=data)
        if (record := read_record(layout)) and record.target == target:
            return replace(layout, venv=record.venv)
    if read_record(Layout(data=data)) is None and Path(LOCK_IN_IMAGE).exists():
        return Layout(data=data)
    return Layout(prefix=own_prefix(target), data=data)


def own_prefix(target: str) -> str:
    """Return the folder of rlbox's own that a target is applied below when no other is named."""
    return check_prefix(str(cache_folder("places", target)))


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


def prepare(app: App, image: ImagePlan, layout: Layout) -> Prepared:
    """Return what a target asks of this machine at `layout`."""
    from rlbox.fixes.applies import stack_versions
    from rlbox.fixes.bake import bake_fixes
    from rlbox.fixes.load import load_fixed_target
    from rlbox.job.load import load_ports
    from rlbox.lock.state import require_lock
    from rlbox.target.lock import load_lock

    require_lock(image)
    loaded = load_fixed_target(app.project, image.target)
    lock = load_lock(app.project.lock_file(image.target))
    if lock is None:
        raise SpecError(f"the lock of target {image.target} is missing", next_step=f"rlbox lock {image.target}")
    target = at_data(loaded.target, layout.data)
    baked = bake_fixes(loaded.fixes, target, stack_versions(target, lock))
    ports = load_ports(Project(folder=app.project.roots[-1]), image.target)
    absent = frozenset(target.base.packages) - installed_debs(target.base.packages)
    wanted = plan_wanted(target, lock, baked, image, layout, ports, sys.executable, absent)
    return Prepared(wanted=wanted, lock=lock, image=image)


def with_room(prepared: Prepared, layout: Layout) -> Layout:
    """Return the layout with the environment on the data disk, where its own place is too small for it."""
    own, data = there(Path(layout.at(VENV))), there(Path(layout.data))
    if layout.prefix or read_record(layout) or Path(VENV).exists():
        return layout
    same_disk = own.stat().st_dev == data.stat().st_dev
    return choose_venv(layout, prepared.wanted.bytes, free_bytes(own), free_bytes(data), same_disk)


def look(prepared: Prepared, why_no_packages: str) -> ApplyPlan:
    """Return what this machine lacks of what is wanted; apt packages only where nothing speaks against them."""
    check_layout(prepared.wanted.layout)
    return plan_apply(prepared.wanted, probe_apply(prepared.wanted, why_no_packages))


def carry_out(app: App, prepared: Prepared, plan: ApplyPlan, wish: ApplyWish) -> Applied:
    """Carry out the plan, saying each step, and remember where the target is."""
    store = Store(store_folder(None))
    context = prepared.image.context
    scripts = {name: context[f"scripts/{name}"] for name in ("apply_patches.py", "unified_diff.py")}
    supplies = Supplies(
        python=lambda: _supply(app, prepared, store, wish),
        store=store,
        fetch=lambda: _fetch_parts(app, prepared, store, wish),
        scripts=scripts,
    )

    def on_step(step: PathChange) -> None:
        if step.kind not in ("file", "link") or app.verbosity > 0:
            app.say(step.told())

    done = carry_out_apply(plan, supplies, on_step)
    prefix = prepared.wanted.layout.prefix
    if prefix:
        write_atomic(_pointer_file(prepared.wanted.target), json.dumps({"prefix": prefix}) + "\n")
    return done


def check_place(layout: Layout) -> tuple[int, tuple[Finding, ...]]:
    """Return how many fixes have checks, and a finding for each whose check fails in the place's environment."""
    manifest = read_table(Path(layout.own, "share/fixes.json"))
    return len(checks_of(manifest, "doctor")), probe_fixes("doctor", manifest, _CHECKS_S, layout.own)


@contextmanager
def busy(layout: Layout) -> Iterator[None]:
    """Hold a place while the block runs; `LockHeld` when another rlbox changes it."""
    name = hashlib.sha256(layout.own.encode()).hexdigest()[:12]
    with hold(cache_folder("locks", f"place-{name}.lock"), f"place {layout.own}"):
        yield


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


def forget_place(target: str, layout: Layout) -> None:
    """Forget where a target was applied, once everything is laid back."""
    if read_table(_pointer_file(target)).get("prefix") == layout.prefix:
        _pointer_file(target).unlink(missing_ok=True)


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


def _pointer_file(target: str) -> Path:
    return cache_folder("places", f"{target}.json")


def _pointer(target: str) -> str:
    """Return the prefix that a target was last applied below, or the one that it would be."""
    found = read_table(_pointer_file(target)).get("prefix")
    return str(found) if found else own_prefix(target)


def _supply(app: App, prepared: Prepared, store: Store, wish: ApplyWish) -> Supply:
    """Return where the packages come from: the store when it holds all, else the profile's index or mirror."""
    from rlbox.machine.act.site import probe_site
    from rlbox.sources.act.live import live_sources
    from rlbox.sources.settings import plan_sources

    lock = prepared.lock
    groups = {group.name for group in lock.groups} | {lock.build.name}
    files = [file for file in artifacts(lock) if file.group in groups]
    missing = [file for file in files if not store.intact(file.sha256, file.size)]
    if not missing:
        return Supply(files={file.file: store.path(file.sha256) for file in files})
    if wish.offline:
        raise _absent(missing, store, lock)
    site = probe_site()
    _, choice = live_sources(app, wish.sources or prepared.image.sources, site, files)
    sources = plan_sources(prepared.image.torch_groups, site, choice)
    trust = {"SSL_CERT_FILE": site.ca_bundle} if site.ca_bundle else {}
    folders = tuple(sorted({wheel.rpartition("/")[0] for wheel in sources.wheels}))
    return Supply(env={**sources.env, **trust}, wheels=folders)


def _fetch_parts(app: App, prepared: Prepared, store: Store, wish: ApplyWish) -> None:
    """Bring the git trees and files of the target into the store."""
    names = part_files(prepared.lock)
    files = [file for file in artifacts(prepared.lock) if file.kind in ("git", "http") and file.name in names]
    missing = [file for file in files if not store.intact(file.sha256, file.size)]
    if not missing:
        return
    if wish.offline:
        raise _absent(missing, store, prepared.lock)
    from rlbox.sources.act.live import locator
    from rlbox.store.act.fetch import ensure

    sources = wish.sources or prepared.image.sources
    ensure(missing, locator(app, sources, artifacts(prepared.lock)), store, target=prepared.lock.target)


def _absent(missing: list[Artifact], store: Store, lock: Lock) -> WorkFailed:
    names = ", ".join(file.name for file in missing[:5]) + (f" and {len(missing) - 5} more" if missing[5:] else "")
    return WorkFailed(
        f"the store lacks {len(missing)} files of the lock: {names}",
        where=str(store.root),
        next_step=f"rlbox fetch {lock.target}, or rlbox fetch {lock.target} --import DIR without a network",
    )
