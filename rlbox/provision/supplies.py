"""What a target is brought with: packages and files, from the store or through it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlbox.app import App
from rlbox.artifacts.fetch import ensure, lacking
from rlbox.artifacts.mirrors import plan_sources
from rlbox.artifacts.object_store import Store, store_folder
from rlbox.artifacts.source_selection import live_sources, locator
from rlbox.image.plan import ImagePlan
from rlbox.provision.apply import Supplies
from rlbox.provision.changes import ApplyPlan
from rlbox.provision.stack import Supply
from rlbox.provision.wanted import Wanted
from rlbox.system.network_settings import read_network_settings
from rlbox.target.artifact import Artifact, artifacts
from rlbox.target.lock import Lock


@dataclass(frozen=True, kw_only=True)
class ApplyWish:
    """What the command line asked for; `forced` is the contradiction of the stack that `--force` overrides."""

    sources: str = ""
    offline: bool = False
    packages: bool = True
    python: str = ""
    accept: Mapping[str, str] = field(default_factory=dict)
    forced: str = ""

    @property
    def why_no_packages(self) -> str:
        """Why apt is left alone; empty when it need not be."""
        return "" if self.packages else "--no-packages was given"


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A target as this machine should have it, what its lock says, and what the user said of the machine."""

    wanted: Wanted
    lock: Lock
    image: ImagePlan
    said: ApplyWish


def supplies_of(app: App, prepared: Prepared, wish: ApplyWish) -> Supplies:
    """Return where what is lacking comes from; each is asked for when it is needed."""
    store = Store(store_folder(None))
    context = prepared.image.context
    scripts = {name: context[f"scripts/{name}"] for name in ("apply_patches.py", "unified_diff.py")}
    return Supplies(
        python=lambda: _supply(app, prepared, store, wish),
        store=store,
        fetch=lambda: _fetch_parts(app, prepared, store, wish),
        scripts=scripts,
    )


def look_for_supplies(app: App, prepared: Prepared, plan: ApplyPlan, wish: ApplyWish) -> None:
    """Say in a dry run whether files would be fetched; what the store lacks of them is refused offline."""
    store, lock = Store(store_folder(None), seals=False), prepared.lock
    groups = {group.name for group in (*lock.groups, lock.build)} if "environment" in plan.kinds else set()
    groups |= {"git", "http"} if "part" in plan.kinds else set()
    missing: list[Artifact] = []
    with app.checking("store"):
        _, missing = _files(lock, groups, store, wish)
    if missing or "packages" in plan.kinds:
        app.not_checked("a dry run asks no network", f"sources {wish.sources or prepared.image.sources}")


def _supply(app: App, prepared: Prepared, store: Store, wish: ApplyWish) -> Supply:
    """Return where the packages come from: the store when it holds all, else the profile's index or mirror.

    What no index has, wheels by address and compiled ones, is taken from the store either way.
    """
    lock = prepared.lock
    files, missing = _files(lock, {group.name for group in lock.groups} | {lock.build.name}, store, wish)
    if not missing:
        return Supply(files={file.file: store.path(file.sha256) for file in files}, offline=True)
    site, profile = read_network_settings(), wish.sources or prepared.image.sources
    if own := [file for file in files if file.kind in ("compiled", "http")]:
        ensure(own, locator(app, profile, own), store, site=site, target=lock.target)
    _, choice = live_sources(app, profile, site, files)
    sources = plan_sources(prepared.image.torch_groups, site, choice)
    trust = {"SSL_CERT_FILE": site.ca_bundle} if site.ca_bundle else {}
    folders = tuple(sorted({wheel.rpartition("/")[0] for wheel in sources.wheels}))
    return Supply(
        env={**sources.env, **trust}, wheels=folders, files={file.file: store.path(file.sha256) for file in own}
    )


def _fetch_parts(app: App, prepared: Prepared, store: Store, wish: ApplyWish) -> None:
    """Bring the git trees and files of the target into the store."""
    _, missing = _files(prepared.lock, {"git", "http"}, store, wish)
    if missing:
        sources = wish.sources or prepared.image.sources
        ensure(missing, locator(app, sources, artifacts(prepared.lock)), store, target=prepared.lock.target)


def _files(lock: Lock, groups: set[str], store: Store, wish: ApplyWish) -> tuple[list[Artifact], list[Artifact]]:
    """Return the lock's files of some groups, and which of them the store lacks; offline it may lack none."""
    files = [file for file in artifacts(lock) if file.group in groups]
    missing = [file for file in files if not store.intact(file.sha256, file.size)]
    if not (missing and wish.offline):
        return files, missing
    raise lacking(missing, store, f"{lock.target} --place here")
