"""What `rlbox build` does; without click, for `cli/quick.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rlbox.errors import EngineError, WorkFailed
from rlbox.image.act.plans import image_plan
from rlbox.lock.state import require_lock

if TYPE_CHECKING:
    from pathlib import Path

    from rlbox.app import App
    from rlbox.image.act.layer_times import LayerTime
    from rlbox.image.build import Step
    from rlbox.image.plan import ImagePlan


@dataclass(frozen=True, kw_only=True)
class BuildWish:
    """What was asked of a build."""

    no_cache: bool = False
    rebuild: bool = False
    hermetic: bool = False
    verify: bool = False
    sources: str = ""


def build_target(app: App, name: str, wish: BuildWish) -> None:
    """Build the image of a target, unless its label proves that it is what the specs say now."""
    from rlbox.engine.act.api import find_image

    plan = image_plan(app.project, name)
    require_lock(plan)
    app.project.source_file(wish.sources or plan.sources)  # a name that is none is met before anything is prepared
    if app.dry_run:
        _dry_run(app, plan, wish)
        return
    image = find_image(plan.tag)  # an engine that does not answer is met before anything is prepared
    if image and not (wish.rebuild or wish.no_cache or wish.verify) and is_current(plan, image):
        _report(app, plan, image["Id"], "unchanged", None)
        return
    _build(app, plan, wish)


def is_current(plan: ImagePlan, image: dict[str, Any]) -> bool:
    """Return whether the engine's image was built from exactly what the plan and this machine hold now."""
    from rlbox.image.act.context import build_digest, context_entries
    from rlbox.image.build import BUILD_LABEL

    config = image.get("Config")
    labels = config.get("Labels") or {} if isinstance(config, dict) else {}
    return bool(labels.get(BUILD_LABEL) == build_digest(context_entries(plan), plan))


def _report(
    app: App, plan: ImagePlan, image: str, state: str, log: Path | None, layers: Sequence[LayerTime] = ()
) -> None:
    said = str(log) if log else None
    data: dict[str, Any] = {"target": plan.target, "image": plan.tag, "id": image, "state": state, "log": said}
    data |= {"layers": [asdict(row) for row in layers]} if layers else {}
    app.result(data, f"{plan.tag}  {image[:19]}  {state}")
    app.say("next: rlbox run smoke" if plan.target == "local" else f"next: rlbox shell {plan.target}")


def _build(app: App, plan: ImagePlan, wish: BuildWish) -> None:
    import time

    from rlbox.engine.act.api import find_image
    from rlbox.files.act.folders import cache_folder
    from rlbox.files.act.lock import hold
    from rlbox.image.act.builder import build_image, find_builder
    from rlbox.image.act.check import check_image
    from rlbox.image.act.describe import describe_image
    from rlbox.image.act.inputs import prepare
    from rlbox.image.act.progress import build_view
    from rlbox.sources.act.live import unreached_explained

    began = time.monotonic()
    _check_engine(app, wish)
    find_builder()  # a missing tool is met before anything is fetched
    with hold(cache_folder("locks", f"build-{plan.target}.lock"), f"build of {plan.target}"):
        with unreached_explained(wish.sources or plan.sources):
            run = prepare(app, plan, wish)
            steps: dict[int, Step] = {}
            with build_view(live=app.interactive, quiet=app.verbosity < 0) as show:

                def on_step(step: Step) -> None:
                    steps[step.number] = step
                    show(step)

                log, digest = build_image(plan, run, on_step)
        check_image(plan, again=wish.no_cache or wish.rebuild or wish.verify)
        app.say(f"built in {time.monotonic() - began:.1f} s; log: {log}")
        describe_image(app, plan, hermetic=wish.hermetic)
        if wish.verify:
            from rlbox.image.act.verify import verify_image

            verify_image(app, plan, run, digest)
    image = find_image(plan.tag)
    if image is None:
        raise WorkFailed(f"the build ended well, but the engine has no image {plan.tag}", next_step=f"whole log: {log}")
    layers = _layers(app, plan, image, steps.values())
    _report(app, plan, image["Id"], "verified" if wish.verify else "built", log, layers)


def _layers(app: App, plan: ImagePlan, image: dict[str, Any], steps: Iterable[Step]) -> tuple[LayerTime, ...]:
    """Return what each layer of the new image took, nothing where the engine does not tell; `-v` shows it."""
    from rlbox.engine.act.stream import engine_lists
    from rlbox.image.act.layer_times import layer_times, layers_text
    from rlbox.image.facts import image_layers
    from rlbox.target.lock import load_lock

    labels = (image.get("Config") or {}).get("Labels") or {}
    try:
        history = engine_lists(f"/images/{image['Id']}/history")
    except EngineError:
        return ()
    lock = load_lock(app.project.lock_file(plan.target))
    rows = layer_times(image_layers(history, lock, patched=bool(labels.get("rlbox.patches"))), steps)
    if app.verbosity > 0:
        app.say(layers_text(rows))
    return rows


def _check_engine(app: App, wish: BuildWish) -> None:
    """Say what an old engine cannot promise; refuse to verify on it."""
    from rlbox.engine.act.api import engine_address, engine_version
    from rlbox.image.build import LINKED_COPIES

    version = engine_version()
    if not version or version >= LINKED_COPIES:
        return
    told = f"Docker {'.'.join(map(str, version))} cannot promise the same bytes for the same lock; 23 and newer can"
    if wish.verify:
        raise EngineError(told, where=engine_address(), next_step="build without --verify, or on another engine")
    app.say(told)


def _dry_run(app: App, plan: ImagePlan, wish: BuildWish) -> None:
    import shlex

    from rlbox.image.build import Builder, BuildFiles, plan_build
    from rlbox.machine.act.site import probe_site

    site = probe_site()
    builder = Builder(words=("docker", "buildx"), integrated=False)
    files = BuildFiles(context=f"images/{plan.target}", sources="SOURCES", ca=site.ca_bundle)
    network = "none" if wish.hermetic else ""
    cache = not (wish.no_cache or wish.verify)
    command = plan_build(plan, builder, files, "DIGEST", cache=cache, network=network, proxies=site.proxies)
    app.result({"target": plan.target, "image": plan.tag, "command": command.argv}, shlex.join(command.argv))
