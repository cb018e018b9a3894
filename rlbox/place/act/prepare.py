"""What a target asks of this machine, what the machine lacks of it, and how that is brought."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from rlbox.app import App
from rlbox.errors import SpecError, WorkFailed
from rlbox.files.act.room import free_bytes
from rlbox.fixes.applies import stack_versions
from rlbox.fixes.bake import bake_fixes
from rlbox.fixes.load import load_fixed_target
from rlbox.image.plan import ImagePlan
from rlbox.job.load import load_ports
from rlbox.machine.act.site import probe_site
from rlbox.place.act.apply import Applied, Supplies, carry_out_apply
from rlbox.place.act.facts import check_layout, installed_debs, probe_apply, read_record, there
from rlbox.place.act.stack import Supply
from rlbox.place.act.whereabouts import remember_place
from rlbox.place.changes import ApplyPlan, PathChange, choose_venv, plan_apply
from rlbox.place.layout import Layout
from rlbox.place.wanted import Wanted, at_data, plan_wanted
from rlbox.sources.act.live import live_sources, locator
from rlbox.sources.settings import plan_sources
from rlbox.spec.project import Project
from rlbox.store.act.fetch import ensure
from rlbox.store.act.objects import Store, store_folder
from rlbox.target.artifact import Artifact, artifacts
from rlbox.target.lock import Lock, load_lock
from rlbox.values import VENV


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


def prepare(app: App, image: ImagePlan, layout: Layout) -> Prepared:
    """Return what a target asks of this machine at `layout`."""
    image.require_lock()
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
    remember_place(prepared.wanted.target, prepared.wanted.layout)
    return done


def _supply(app: App, prepared: Prepared, store: Store, wish: ApplyWish) -> Supply:
    """Return where the packages come from: the store when it holds all, else the profile's index or mirror."""
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
    files = [file for file in artifacts(prepared.lock) if file.group in ("git", "http")]
    missing = [file for file in files if not store.intact(file.sha256, file.size)]
    if not missing:
        return
    if wish.offline:
        raise _absent(missing, store, prepared.lock)
    sources = wish.sources or prepared.image.sources
    ensure(missing, locator(app, sources, artifacts(prepared.lock)), store, target=prepared.lock.target)


def _absent(missing: list[Artifact], store: Store, lock: Lock) -> WorkFailed:
    names = ", ".join(file.name for file in missing[:5]) + (f" and {len(missing) - 5} more" if missing[5:] else "")
    return WorkFailed(
        f"the store lacks {len(missing)} files of the lock: {names}",
        where=str(store.root),
        next_step=f"rlbox fetch {lock.target}, or rlbox fetch {lock.target} --import DIR without a network",
    )
