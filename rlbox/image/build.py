"""What `rlbox build` does: build an image unless it is current; with `--verify` twice, to compare digests."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from rlbox.amounts import duration_text
from rlbox.app import App
from rlbox.engine.address import open_engine_tunnel_if_remote
from rlbox.engine.connection import connect_engine, find_image, read_docker_server_version
from rlbox.errors import EngineError, NotAnswered, WorkFailed
from rlbox.i18n import _
from rlbox.image.buildkit import (
    MIN_ENGINE_FOR_LINKED_COPIES,
    BuildClient,
    BuildOptions,
    BuildRequest,
    build_image,
    find_build_client,
    plan_build_command,
    show_build_progress,
)
from rlbox.image.context import find_outdated_reason
from rlbox.image.names import VERIFY_TAG_SUFFIX, record_project_dir, tag_to_file_name
from rlbox.image.plan import ImagePlan, load_image_plan
from rlbox.image.show import list_image_layers

if TYPE_CHECKING:
    from pathlib import Path


def build_unless_current_and_report(app: App, target_name: str, options: BuildOptions) -> int:
    """Build the image of a target, unless its label proves that it is what the specs say now; return the exit code."""
    return _ImageBuild(app, load_image_plan(app.project, target_name), options).run()


def ensure_image_built(app: App, target_name: str) -> None:
    """Build the image of a target where there is none, or an outdated one; there is no result but the image."""
    _ImageBuild(app, load_image_plan(app.project, target_name), BuildOptions()).ensure_built()


_BY_HAND = "# what this line names is made by the build alone; by hand: rlbox render {target} --context FOLDER"
_MOMENT_S = 5.0
"""How long to wait for another build of the target, which may have nothing to do; one that builds takes minutes."""


class _ImageBuild:
    """The build of one image: the plan of it, what was asked for, and the steps in their order."""

    def __init__(self, app: App, plan: ImagePlan, options: BuildOptions) -> None:
        self._app, self._plan, self._options = app, plan, options

    def run(self) -> int:
        """Build, check, describe and report the image; an image that is current is only reported."""
        app, plan, options = self._app, self._plan, self._options
        with app.collecting_refusals_if_dry_run("lock"):
            plan.require_current_lock()
        app.project.require_sources_profile_file(
            options.sources_profile or plan.sources_profile
        )  # met before anything is prepared
        asked, why, image = options.rebuild or options.no_cache or options.verify, None, None
        with app.collecting_refusals_if_dry_run("image"):
            image = find_image(plan.tag)  # an engine that does not answer is met before anything is prepared
            why = find_outdated_reason(plan, image) if image and not asked else None
        if image and not asked and not why and not app.dry.refusals:
            return self._report(image["Id"], "unchanged", None)
        if app.dry_run:
            return self._look(why)
        log = self._build(why)
        image = find_image(plan.tag)
        if image is None:
            what = _("the build ended well, but the engine has no image {tag}").format(tag=plan.tag)
            raise WorkFailed(what, next_step=_("full log: {log}").format(log=log))
        return self._report(image["Id"], "verified" if options.verify else "built", log)

    def ensure_built(self) -> None:
        """Build, check and describe the image unless it is current."""
        if self._app.dry_run:
            self._look_first()
            return
        self._plan.require_current_lock()
        image = find_image(self._plan.tag)
        why = find_outdated_reason(self._plan, image) if image else None
        if why or not image:
            self._build(why)

    def _build(self, outdated_reason: str | None) -> Path:
        """Build the image until it is checked and described, and verified where that is asked; return the log."""
        from rlbox.image.check import cache_image_sbom, check_fixes_or_untag_image
        from rlbox.system.file_lock import hold_lock

        app, plan, options = self._app, self._plan, self._options
        began = time.monotonic()
        self._check_engine()
        if outdated_reason:
            app.print_status(f"{plan.tag} is built anew: {outdated_reason}")
        find_build_client()  # a missing tool is met before anything is fetched
        with hold_lock(*self._lock, timeout_s=_MOMENT_S, on_wait=app.print_status):
            run, log, digest = self._run_builder()
            check_fixes_or_untag_image(plan, ignore_cached_pass=options.no_cache or options.verify)
            app.print_status(f"built in {duration_text(time.monotonic() - began)}; log: {log}")
            cache_image_sbom(app, plan)
            if options.verify:
                _verify_build_is_reproducible(app, plan, run, digest)
        return log

    def _run_builder(self) -> tuple[BuildRequest, Path, str]:
        """Write the context and build from it; return how, the log, and the digest of the image's manifest."""
        from rlbox.image.inputs import BuildInputs

        app = self._app
        run = BuildInputs(app, self._plan, self._options).fetch_and_write_context()
        with show_build_progress(app) as on_step:
            return (run, *build_image(self._plan.target, run, on_step, app.print_status))

    @property
    def _lock(self) -> tuple[Path, str]:
        """What one build of a target at a time holds, and the word for it."""
        from rlbox.system.files import cache_path

        return cache_path("locks", f"build-{tag_to_file_name(self._plan.tag)}.lock"), f"build of {self._plan.target}"

    def _report(self, image: str, state: str, log: Path | None) -> int:
        target, tag = self._plan.target, self._plan.tag
        said = str(log) if log else None
        data: dict[str, Any] = {"target": target, "image": tag, "id": image, "state": state, "log": said}
        data |= {"forced": self._options.overridden_conflict_text} if self._options.overridden_conflict_text else {}
        text = f"{tag}  {image[:19]}  {state}"
        if self._app.dry_run:
            return self._app.planned(data, text, "build nothing: the image is what its specs say now")
        record_project_dir(self._app.project)
        self._app.result(data, text)
        self._app.print_status("next: rlbox run smoke" if target == "local" else f"next: rlbox shell {target}")
        return 0

    def _look_first(self) -> None:
        """Note in a dry run that the image is built, where it is missing or outdated; it counts as made then."""
        from rlbox.image.inputs import BuildInputs

        app, plan = self._app, self._plan
        with app.collecting_refusals_if_dry_run("lock"):
            plan.require_current_lock()
            try:
                image = find_image(plan.tag)
                why = "there is none" if image is None else find_outdated_reason(plan, image)
            except NotAnswered:
                why = "there is no engine yet"
            if why:
                app.dry.steps_before.append(f"the image {plan.tag} is built: {why}")
                app.dry.built_tags.add(plan.tag)
                BuildInputs(app, plan, self._options).plan_dry_run_request()

    def _check_engine(self) -> None:
        """Say what an old engine cannot promise; refuse to verify on it."""
        version = read_docker_server_version()
        if not version or version >= MIN_ENGINE_FOR_LINKED_COPIES:
            return
        told = _("Docker {version} cannot promise the same bytes for the same lock; 23 and newer can").format(
            version=".".join(map(str, version))
        )
        if self._options.verify:
            raise EngineError(
                told,
                where=open_engine_tunnel_if_remote(),
                next_step=_("build without --verify, or on another engine"),
            )
        self._app.print_status(told)

    def _look(self, why: str | None) -> int:
        """Show the build that would be carried out, and whether it would; `why` an image that is there will not do."""
        import shlex

        from rlbox.image.inputs import BuildInputs
        from rlbox.system.file_lock import require_unlocked

        app, plan = self._app, self._plan
        data: dict[str, Any] = {"target": plan.target, "image": plan.tag, "why": why or ""}
        data |= {"forced": self._options.overridden_conflict_text} if self._options.overridden_conflict_text else {}
        would = f"build {plan.tag}" + (f": {why}" if why else "")
        with app.collecting_refusals_if_dry_run("engine"):
            self._check_engine()
        builder = BuildClient(argv_prefix=("docker", "buildx"), has_builtin_buildkit=False)
        with app.collecting_refusals_if_dry_run("docker client"):
            builder = find_build_client()
        with app.collecting_refusals_if_dry_run("other builds"):
            require_unlocked(*self._lock)
        words: tuple[str, ...] = ()
        with app.collecting_refusals_if_dry_run("lock"):
            run = BuildInputs(app, plan, self._options).plan_dry_run_request()
            words = plan_build_command(run, builder, "SOURCES").argv
        lines = [shlex.join(words), _BY_HAND.format(target=plan.target)] if words else []
        return app.planned({**data, "command": words}, "\n".join(lines), would)


def _verify_build_is_reproducible(app: App, plan: ImagePlan, request: BuildRequest, first_digest: str) -> None:
    """Build the image once more without cache and compare it with the one whose manifest has `first_digest`.

    Raises
    ------
    WorkFailed
        They differ; the layers that do are named.
    """
    again = f"{plan.tag}{VERIFY_TAG_SUFFIX}"
    app.print_status("building once more, without cache, to compare")
    try:
        with show_build_progress(app) as on_step:
            log, second = build_image(
                plan.target, dataclasses.replace(request, tag=again, use_cache=False), on_step, app.print_status
            )
        if first_digest and first_digest == second:
            app.print_status(f"verified: both builds have the digest {first_digest}")
            return
        different = _diff_layers(plan.tag, again)
        if not first_digest and not different:
            app.print_status(
                "verified: both builds have the same layers; this engine's builder tells no digest to compare"
            )
            return
        raise WorkFailed(
            _("two builds of {target} differ: {digest} and {second}\n{value}").format(
                target=plan.target,
                digest=first_digest or _("first"),
                second=second or _("second"),
                value="\n".join(
                    f"  {line}" for line in different or ("the layers are the same, the configuration differs",)
                ),
            ),
            next_step=_("full log: {log}").format(log=log),
        )
    finally:
        connect_engine().try_untag_image(again)


def _diff_layers(first_tag: str, second_tag: str) -> list[str]:
    """Return a line for each layer whose unpacked content differs between two images."""
    first, second = (_list_layer_digests(tag) for tag in (first_tag, second_tag))
    if len(first) != len(second):
        return [f"{len(first)} and {len(second)} layers"]
    commands = [layer.command for layer in list_image_layers(connect_engine().image_history(first_tag))]
    if len(commands) != len(first):
        commands = [""] * len(first)
    rows = enumerate(zip(first, second, commands, strict=True), 1)
    return [f"layer {number} ({command})" for number, (one, other, command) in rows if one != other]


def _list_layer_digests(tag: str) -> list[str]:
    image = connect_engine().find_image(tag) or {}
    return list((image.get("RootFS") or {}).get("Layers") or ())
