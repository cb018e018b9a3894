"""What `rlbox build` does; without click, for `cli/quick.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlbox.errors import SpecError, WorkFailed

if TYPE_CHECKING:
    from pathlib import Path

    from rlbox.cli.app import App
    from rlbox.plan.image import ImagePlan
    from rlbox.plan.sources import SiteFacts, SourcePlan


def build_target(app: App, name: str, *, no_cache: bool, rebuild: bool) -> None:
    """Build the image of a target, unless its label proves that it is what the specs say now."""
    from rlbox.act.engine_api import find_image
    from rlbox.act.site import probe_site
    from rlbox.plan.sources import plan_sources

    plan = app.image_plan(name)
    require_lock(plan)
    if (rebuild or no_cache) and not app.dry_run:
        find_image(plan.tag)  # an engine that does not answer is met before anything is prepared
    elif not app.dry_run and (image := _find_current(plan)):
        _report(app, plan, image["Id"], "unchanged", None)
        return
    site = probe_site()
    sources = plan_sources(plan.torch_groups, site)
    if app.dry_run:
        _dry_run(app, plan, site, sources)
        return
    _build(app, plan, site, sources, cache=not no_cache)


def _find_current(plan: ImagePlan) -> dict[str, Any] | None:
    """Return the engine's description of the image when it needs no build, else None."""
    from rlbox.act.engine_api import find_image
    from rlbox.act.site import probe_site
    from rlbox.plan.sources import plan_sources

    sources = plan_sources(plan.torch_groups, probe_site())
    image = find_image(plan.tag)
    return image if image and is_current(plan, sources, image) else None


def require_lock(plan: ImagePlan) -> None:
    """Raise `SpecError` unless the target's lock fits its spec."""
    if plan.lock != "current":
        raise SpecError(
            f"the lock of target {plan.target} is {plan.lock}",
            where=f"images/{plan.target}/lock.json",
            next_step=f"rlbox lock {plan.target}",
        )


def is_current(plan: ImagePlan, sources: SourcePlan, image: dict[str, object]) -> bool:
    """Return whether the engine's image was built from exactly what the plan and this machine hold now."""
    from rlbox.act.bootstrap import rootfs_path
    from rlbox.act.context import build_digest, context_entries
    from rlbox.plan.build import BUILD_LABEL

    rootfs = rootfs_path(plan.bootstrap, plan.packages, plan.epoch) if plan.bootstrap else None
    if rootfs and not rootfs.exists():
        return False
    config = image.get("Config")
    labels = config.get("Labels") or {} if isinstance(config, dict) else {}
    return labels.get(BUILD_LABEL) == build_digest(context_entries(plan, rootfs, sources.wheels), plan)


def _report(app: App, plan: ImagePlan, image: str, state: str, log: Path | None) -> None:
    data = {"target": plan.target, "image": plan.tag, "id": image, "state": state, "log": str(log) if log else None}
    app.result(data, f"{plan.tag}  {image[:19]}  {state}")
    app.say("next: rlbox run smoke" if plan.target == "local" else f"next: rlbox shell {plan.target}")


def prepare(plan: ImagePlan, folder: Path | None = None) -> tuple[Path, str]:
    """Write the build context of `plan`, bootstrapping its base when needed; return its folder and digest."""
    from rlbox.act.bootstrap import make_rootfs
    from rlbox.act.context import build_digest, context_entries, write_context
    from rlbox.act.folders import cache_folder
    from rlbox.act.site import probe_site
    from rlbox.plan.sources import plan_sources

    require_lock(plan)
    sources = plan_sources(plan.torch_groups, probe_site())
    rootfs = make_rootfs(plan.bootstrap, plan.packages, plan.epoch) if plan.bootstrap else None
    entries = context_entries(plan, rootfs, sources.wheels)
    digest = build_digest(entries, plan)
    folder = folder or cache_folder("contexts", plan.target)
    write_context(entries, folder)
    return folder, digest


def _build(app: App, plan: ImagePlan, site: SiteFacts, sources: SourcePlan, *, cache: bool) -> None:
    import time

    from rlbox.act.bootstrap import rootfs_path
    from rlbox.act.builder import build_image
    from rlbox.act.engine_api import find_image
    from rlbox.act.file_lock import hold
    from rlbox.act.folders import cache_folder
    from rlbox.report.build_view import build_view

    began = time.monotonic()
    with hold(cache_folder("locks", f"build-{plan.target}.lock"), f"build of {plan.target}"):
        if plan.bootstrap and not rootfs_path(plan.bootstrap, plan.packages, plan.epoch).exists():
            app.say(f"making the base from apt: {plan.bootstrap}, {len(plan.packages)} packages")
        folder, digest = prepare(plan)
        with build_view(live=app.interactive, quiet=app.verbosity < 0) as on_step:
            log = build_image(plan, folder, digest, sources, site, cache=cache, on_step=on_step)
    app.say(f"built in {time.monotonic() - began:.1f} s; log: {log}")
    image = find_image(plan.tag)
    if image is None:
        raise WorkFailed(f"the build ended well, but the engine has no image {plan.tag}", next_step=f"whole log: {log}")
    _report(app, plan, image["Id"], "built", log)


def _dry_run(app: App, plan: ImagePlan, site: SiteFacts, sources: SourcePlan) -> None:
    import shlex

    from rlbox.plan.build import Builder, BuildFiles, plan_build

    builder = Builder(words=("docker", "buildx"), integrated=False)
    files = BuildFiles(context=f"images/{plan.target}", sources="SOURCES", ca=site.ca_bundle)
    command = plan_build(plan, builder, files, "DIGEST", cache=True, proxies=site.proxies)
    app.result(
        {"target": plan.target, "image": plan.tag, "command": command.argv, "wheels": sources.wheels},
        shlex.join(command.argv),
    )
