"""What `rlbox build` does: build an image unless it is current; with `--verify` twice, to compare digests."""

from __future__ import annotations

import dataclasses
import os
import shlex
import time
from pathlib import Path
from typing import Any

from rlbox.amounts import duration_text, exact_duration_text
from rlbox.app import App
from rlbox.engine.address import resolve_engine_address_opening_tunnel
from rlbox.engine.connection import connect_engine, find_image, read_docker_server_version_or_raise
from rlbox.engine.container import TARGET_LABEL, ContainerPlan
from rlbox.engine.oci import find_manifest_digest_or_empty
from rlbox.errors import EngineError, EngineUnavailable, TimedOut, WorkFailed
from rlbox.findings import parse_finding
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _, join, translate
from rlbox.image.buildkit import (
    MIN_ENGINE_FOR_LINKED_COPIES,
    BuildOptions,
    BuildRequest,
    build_image,
    find_buildx_path_or_raise,
    plan_build_command,
    show_build_progress,
)
from rlbox.image.context import find_image_outdated_reason
from rlbox.image.inputs import BuildContextWriter
from rlbox.image.names import VERIFY_TAG_SUFFIX, tag_to_file_name, try_record_project_dir
from rlbox.image.plan import ImagePlan, load_image_plan
from rlbox.image.sbom import SBOM_FILE, render_spdx_sbom
from rlbox.image.show import list_image_layers_bottom_up
from rlbox.system.file_lock import hold_lock, require_unlocked
from rlbox.system.files import cache_path, write_atomic

_BY_HAND = _("# what this line names is made by the build alone; by hand: rlbox render {target} --context FOLDER")
_MOMENT_S = 5.0
"""How long to wait for another build of the target, which may have nothing to do; one that builds takes minutes."""
_CHECKS_S = 600.0  # a stack of ten gigabytes is read from a cold disk, on a machine that just built it


def build_unless_current_and_report(app: App, target_name: str, options: BuildOptions) -> int:
    """Build the image of a target, unless its label proves that it is what the specs say now; return the exit code."""
    plan = load_image_plan(app.project, target_name)
    with app.collecting_refusals_if_dry_run("lock"):
        plan.require_current_lock()
    app.project.require_sources_profile_file(options.sources_profile or plan.sources_profile)
    asked, why, image = options.rebuild or options.no_cache or options.verify, None, None
    with app.collecting_refusals_if_dry_run("image"):
        image = find_image(plan.tag)  # an engine that does not answer is met before anything is prepared
        why = find_image_outdated_reason(plan, image) if image and not asked else None
    if image and not asked and not why and not app.dry.refusals:
        return _report(app, plan, options, image["Id"], _("unchanged"), None)
    if app.dry_run:
        return _plan_dry_run(app, plan, options, why)
    log = _build(app, plan, options, why)
    image = find_image(plan.tag)
    if image is None:
        what = _("the build ended well, but the engine has no image {tag}").format(tag=plan.tag)
        raise WorkFailed(what, next_step=_("full log: {log}").format(log=log))
    return _report(app, plan, options, image["Id"], _("verified") if options.verify else _("built"), log)


def ensure_current_image_built(app: App, target_name: str) -> None:
    plan = load_image_plan(app.project, target_name)
    options = BuildOptions(sources_profile=os.environ.get("RLBOX_SOURCES", ""))
    if not app.dry_run:
        plan.require_current_lock()
        image = find_image(plan.tag)
        why = find_image_outdated_reason(plan, image) if image else None
        if why or not image:
            _build(app, plan, options, why)
        return
    with app.collecting_refusals_if_dry_run("lock"):
        plan.require_current_lock()
        try:
            image = find_image(plan.tag)
            why = _("there is none") if image is None else find_image_outdated_reason(plan, image)
        except EngineUnavailable:
            why = _("there is no engine yet")
        if why:
            app.dry.steps_before.append(_("the image {tag} is built: {why}").format(tag=plan.tag, why=why))
            app.dry.built_tags.add(plan.tag)
            BuildContextWriter(app, plan, options).check_and_plan_request_for_dry_run()


def _build(app: App, plan: ImagePlan, options: BuildOptions, outdated_reason: str | None) -> Path:
    began = time.monotonic()
    _check_engine(app, options)
    if outdated_reason:
        app.print_status(_("rebuilding {tag}: {reason}").format(tag=plan.tag, reason=outdated_reason))
    find_buildx_path_or_raise()  # a missing tool is met before anything is fetched
    with hold_lock(*_build_lock(plan), timeout_s=_MOMENT_S, on_wait=app.print_status):
        request = BuildContextWriter(app, plan, options).fetch_and_write_context()
        with show_build_progress(app) as on_step:
            log, digest = build_image(plan.target, request, on_step, app.print_status)
        _check_fixes_or_untag_image(plan)
        duration = duration_text(time.monotonic() - began)
        app.print_status(_("built in {duration}; log: {log}").format(duration=duration, log=log))
        _cache_image_sbom(app, plan)
        if options.verify:
            _verify_build_is_reproducible(app, plan, request, digest)
    return log


def _build_lock(plan: ImagePlan) -> tuple[Path, str]:
    return cache_path("locks", f"build-{tag_to_file_name(plan.tag)}.lock"), _("build of {target}").format(
        target=plan.target
    )


def _report(app: App, plan: ImagePlan, options: BuildOptions, image_id: str, state: str, log: Path | None) -> int:
    data: dict[str, Any] = {"target": plan.target, "image": plan.tag, "id": image_id, "state": state}
    data |= {"log": str(log) if log else None, **_forced(options)}
    text = f"{plan.tag}  {image_id[:19]}  {translate(state)}"
    if app.dry_run:
        return app.print_dry_run(data, text, _("build nothing: the image is what its specs say now"))
    try_record_project_dir(app.project)
    app.output(data, text)
    command = "rlbox run smoke" if plan.target == "local" else f"rlbox shell {plan.target}"
    app.print_next(command)
    return 0


def _forced(options: BuildOptions) -> dict[str, str]:
    return {"forced": options.forced_stack_conflict} if options.forced_stack_conflict else {}


def _check_engine(app: App, options: BuildOptions) -> None:
    version = read_docker_server_version_or_raise()
    if not version or version >= MIN_ENGINE_FOR_LINKED_COPIES:
        return
    text = _("Docker {version} cannot promise the same bytes for the same lock; 23 and newer can").format(
        version=".".join(map(str, version))
    )
    if options.verify:
        raise EngineError(
            text,
            where=resolve_engine_address_opening_tunnel(),
            next_step=_("build without --verify, or on another engine"),
        )
    app.print_status(text)


def _plan_dry_run(app: App, plan: ImagePlan, options: BuildOptions, why: str | None) -> int:
    buildx = "docker-buildx"
    argv: tuple[str, ...] = ()
    with app.collecting_refusals_if_dry_run("engine"):
        _check_engine(app, options)
    with app.collecting_refusals_if_dry_run("docker client"):
        buildx = find_buildx_path_or_raise()
    with app.collecting_refusals_if_dry_run("other builds"):
        require_unlocked(*_build_lock(plan))
    with app.collecting_refusals_if_dry_run("lock"):
        request = BuildContextWriter(app, plan, options).check_and_plan_request_for_dry_run()
        argv = plan_build_command(request, buildx, "SOURCES").argv
    lines: list[str] = [shlex.join(argv), translate(_BY_HAND.format(target=plan.target))] if argv else []
    data = {"target": plan.target, "image": plan.tag, "why": why or "", **_forced(options), "command": argv}
    would = (_("build {tag}: {why}") if why else _("build {tag}")).format(tag=plan.tag, why=why)
    return app.print_dry_run(data, "\n".join(lines), would)


def _check_fixes_or_untag_image(plan: ImagePlan) -> None:
    """Check the fixes in a container of the new image; where one is absent, the image loses its tag.

    Raises WorkFailed: a check failed; every one is named with what it saw.
    """
    container = ContainerPlan(
        image=plan.tag,
        name=f"rlbox-checks-{plan.target}-{os.getpid()}",
        argv=("/opt/rlbox/bin/python", "-m", "rlbox.doctor", "build"),
        labels={TARGET_LABEL: plan.target},
        network="none",
    )
    try:
        outcome = connect_engine().run_and_remove_container(container, _CHECKS_S)
    except (TimedOut, EngineError) as error:
        connect_engine().try_remove_image_by_tag(plan.tag)
        late = _("did not end within {limit_s}").format(limit_s=exact_duration_text(_CHECKS_S))
        why = late if isinstance(error, TimedOut) else _("could not be run: {what}").format(what=error.what)
        raise WorkFailed(_("the checks of {tag} {why}").format(tag=plan.tag, why=why)) from error
    if outcome.ok:
        return
    connect_engine().try_remove_image_by_tag(plan.tag)
    findings = [parse_finding(parse_untrusted_json(line)) for line in outcome.stdout.splitlines() if line[:1] == "{"]
    if not findings:
        stderr = outcome.stderr.strip()[-500:]
        raise WorkFailed(_("the checks of {tag} could not be run: {stderr}").format(tag=plan.tag, stderr=stderr))
    lines = [f"  {finding.id}: {finding.seen or finding.title}" for finding in findings]
    raise WorkFailed(
        _("{count} of the fixes baked into {tag} do not hold, so it lost its tag\n{found}").format(
            count=len(findings), tag=plan.tag, found="\n".join(lines)
        ),
        next_step=f"rlbox fixes show {findings[0].id}",
    )


def _cache_image_sbom(app: App, plan: ImagePlan) -> None:
    """Write the SBOM of the image that was just built; a file that cannot be written fails no build.

    It lies in a folder of the image's own, whatever its name: the same image of another project has the same.
    """
    if (image := find_image(plan.tag)) is None:
        return
    # an engine without manifests has the digest of the image's configuration
    digest = find_manifest_digest_or_empty(image) or str(image["Id"])
    path = cache_path("images", plan.target, digest.rpartition(":")[2][:24]) / SBOM_FILE
    try:
        write_atomic(
            path, render_spdx_sbom(plan.require_current_lock(), plan.tag.rpartition(":")[0], digest, plan.epoch)
        )
    except OSError as error:
        app.print_status(
            _("note: the image has no SBOM: {path} cannot be written: {strerror}").format(
                path=path, strerror=error.strerror
            )
        )


def _verify_build_is_reproducible(app: App, plan: ImagePlan, request: BuildRequest, first_digest: str) -> None:
    again = f"{plan.tag}{VERIFY_TAG_SUFFIX}"
    app.print_status(_("building once more, without cache, to compare"))
    request = dataclasses.replace(request, tag=again, use_cache=False)
    try:
        with show_build_progress(app) as on_step:
            log, second = build_image(plan.target, request, on_step, app.print_status)
        if first_digest == second:
            app.print_status(_("verified: both builds have the digest {digest}").format(digest=first_digest))
            return
        different = _diff_layers(plan.tag, again) or [_("the layers are the same, the configuration differs")]
        raise WorkFailed(
            _("two builds of {target} differ: {digest} and {second}\n{value}").format(
                target=plan.target,
                digest=first_digest,
                second=second,
                value=join("\n", (join("", ("  ", line)) for line in different)),
            ),
            next_step=_("full log: {log}").format(log=log),
        )
    finally:
        connect_engine().try_remove_image_by_tag(again)


def _diff_layers(first_tag: str, second_tag: str) -> list[str]:
    images = [connect_engine().find_image(tag) or {} for tag in (first_tag, second_tag)]
    first, second = (list((image.get("RootFS") or {}).get("Layers") or ()) for image in images)
    if len(first) != len(second):
        return [_("{first} and {second} layers").format(first=len(first), second=len(second))]
    commands = [layer.command for layer in list_image_layers_bottom_up(connect_engine().image_history(first_tag))]
    if len(commands) != len(first):
        commands = [""] * len(first)
    rows = enumerate(zip(first, second, commands, strict=True), 1)
    text = _("layer {number} ({command})")
    return [text.format(number=number, command=command) for number, (one, other, command) in rows if one != other]
