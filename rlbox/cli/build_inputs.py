"""What a build starts from: the locked files that it carries, its context folder, its settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rlbox.act.base_layout import write_base_layout
from rlbox.act.bootstrap import make_rootfs, rootfs_path
from rlbox.act.builder import BuildRun, find_builder
from rlbox.act.context import build_digest, carried_entries, context_entries, write_context
from rlbox.act.engine_api import engine_version
from rlbox.act.folders import cache_folder
from rlbox.act.store import Store, store_folder
from rlbox.cli.build_image import BuildWish, require_lock
from rlbox.cli.places import build_env, fetch_base_image, locator
from rlbox.errors import EngineError, SpecError
from rlbox.plan.bootstrap import deb_file
from rlbox.plan.build import LINKED_COPIES, dockerfile_for
from rlbox.plan.fetch import size_text
from rlbox.plan.image import ImagePlan, part_files
from rlbox.plan.layers import layer_folder, plan_layers
from rlbox.plan.sources import SiteFacts
from rlbox.report.fetch_view import fetch_view
from rlbox.spec.artifact import Artifact, artifacts
from rlbox.spec.load import load_profile, load_target
from rlbox.spec.lock import Lock, Package, load_lock

if TYPE_CHECKING:
    from rlbox.cli.app import App


def prepare(app: App, plan: ImagePlan, wish: BuildWish, folder: Path | None = None) -> BuildRun:
    """Write the build context of `plan`, fetching and bootstrapping what it carries; return how the build is run.

    A hermetic build carries every locked file, any other only those that a step cannot verify by itself or that this
    machine holds anyway.
    """
    from rlbox.act.site import probe_site

    require_lock(plan)
    site = probe_site()
    lock = _lock(app, plan)
    store = Store(store_folder(None))
    profile = wish.sources or plan.sources
    _fetch(app, plan, lock, store, profile, everything=wish.hermetic)
    if plan.rootfs and not rootfs_path(plan.rootfs).exists():
        app.say(f"making the base from its {len(lock.debs)} apt packages")
    rootfs = make_rootfs(lock, plan.rootfs, plan.epoch, store) if plan.rootfs else None
    wheels = _wheels(app, plan, lock, store, site, everything=wish.hermetic)
    places = part_files(lock)
    parts = {places[tree.name]: store.path(tree.sha256) for tree in lock.git}
    parts |= {places[file.name]: store.path(file.sha256) for file in lock.http}
    if "@" in lock.base:
        parts |= {f"debs/{deb_file(deb)}": store.path(deb.sha256) for deb in lock.debs}
    entries = context_entries(plan)
    folder = folder or cache_folder("contexts", plan.target)
    base = _base(app, lock, store, profile, stored=wish.hermetic)
    dockerfile = {"Dockerfile": dockerfile_for(plan.context["Dockerfile"], _engine(), lock.base if base else "")}
    carried = carried_entries(plan, rootfs, wheels, parts, complete=wish.hermetic)
    write_context({**entries, **carried, **dockerfile}, folder)
    return BuildRun(
        context=folder,
        digest=build_digest(entries, plan),
        env={} if wish.hermetic else build_env(app, plan, profile, site, artifacts(lock)),
        site=site,
        cache=not (wish.no_cache or wish.verify),
        network="none" if wish.hermetic else "",
        base=base,
    )


def _base(app: App, lock: Lock, store: Store, sources: str, *, stored: bool) -> str:
    """Return where BuildKit gets the base image, in the words of a named context; nothing for a bootstrapped base.

    A profile with mirrors of registries gets it through the store, as a hermetic build does: it fails over, and the
    bytes are verified. A named context even for what the engine pulls itself: only then the times in the image's
    history are the same both ways. Old builders know no named contexts; the Dockerfile names the image for them.
    """
    if "@" not in lock.base:
        return ""
    from_store = stored or load_profile(app.project, sources).has("oci")
    if find_builder().integrated or (_engine() or LINKED_COPIES) < LINKED_COPIES:
        if from_store:
            raise EngineError(
                "this engine cannot build on a base image from the store",
                next_step="use Docker 23 or newer with the buildx plugin, or build without --hermetic",
            )
        return ""
    if not from_store:
        return f"docker-image://{lock.base}"
    fetch_base_image(app, lock, store, sources)
    return f"oci-layout://{write_base_layout(lock.base, lock.platform, store)}@{lock.base.rpartition('@')[2]}"


def _engine() -> tuple[int, ...]:
    try:
        return engine_version()
    except EngineError:  # a context is written for whatever engine builds it
        return ()


def _lock(app: App, plan: ImagePlan) -> Lock:
    lock = load_lock(app.project.lock_file(plan.target))
    if lock is None or lock.checksum() != plan.lock_checksum:
        raise SpecError(
            f"the lock of target {plan.target} changed while it was read", next_step=f"rlbox build {plan.target}"
        )
    return lock


def _fetch(app: App, plan: ImagePlan, lock: Lock, store: Store, profile: str, *, everything: bool) -> None:
    """Bring into the store what the build carries: all, or uv and what no step of a Dockerfile verifies by itself."""
    from rlbox.act.fetch import ensure

    wanted = artifacts(lock)
    carried = [file for file in wanted if everything or file.kind in ("apt", "git", "http") or _is_uv(file)]
    if plan.rootfs and rootfs_path(plan.rootfs).exists():
        carried = [artifact for artifact in carried if artifact.kind != "apt"]
    missing = [artifact for artifact in carried if not store.intact(artifact.sha256, artifact.size)]
    if missing:
        size = sum(artifact.size for artifact in missing)
        app.say(f"fetching {len(missing)} files, {size_text(size)}")
        with fetch_view(size, live=app.interactive, quiet=app.verbosity < 0) as on_progress:
            ensure(carried, locator(app, profile, wanted), store, on_progress, target=plan.target)


def _is_uv(file: Artifact) -> bool:
    return (file.name, file.group) == ("uv", "runtime")


def _wheels(
    app: App, plan: ImagePlan, lock: Lock, store: Store, site: SiteFacts, *, everything: bool
) -> Mapping[str, Path]:
    """Return the Python packages that the context carries: path below `wheels/` to the file."""
    layers = plan_layers(load_target(app.project, plan.target).target, lock)
    rows = [("runtime", package) for package in lock.runtime.packages]
    rows += [("uv", package) for package in lock.runtime.packages if package.name == "uv"]
    rows += [(layer_folder(layer.name), package) for layer in layers for package in layer.packages]
    found: dict[str, Path] = {}
    for folder, package in rows:
        path = store.path(package.sha256) if everything or _carried(folder, package) else _local_wheel(package, site)
        if path:
            found[f"{folder}/{package.file}"] = path
            if everything and not package.is_wheel:
                found |= {f"{folder}/{tool.file}": store.path(tool.sha256) for tool in lock.build.packages}
    return found


def _carried(folder: str, package: Package) -> bool:
    """Return whether a package is in every context: uv, and what no package index has."""
    return folder == "uv" or "://" in package.source


def _local_wheel(package: Package, site: SiteFacts) -> Path | None:
    """Return the package's file in one of pip's `find-links` folders, when it has the locked bytes."""
    from rlbox.act.store import sum_file

    for folder, names in site.find_links.items():
        for name in names:
            if name.replace("%2B", "+") == package.file and sum_file(Path(folder, name)) == package.sha256:
                return Path(folder, name)
    return None
