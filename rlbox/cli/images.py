"""`rlbox images`, `save`, `load`, `push`, `export` and `shell`: what is done with an image that was built."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import click

from rlbox.amounts import decimal_size_text
from rlbox.app import App
from rlbox.cli.help import DefaultLsGroup
from rlbox.cli.options import (
    complete_target_or_job,
    confirm_unless_yes,
    data_option,
    dry_run_option,
    force_option,
    gpus_option,
    pass_app_with_shared_options,
    target_argument,
    target_profile_and_set_options,
    yes_option,
)
from rlbox.engine.archive import load_and_verify_image_archive, read_verified_archive, save_image_archive
from rlbox.engine.connection import connect_engine, require_image
from rlbox.engine.push import push_and_verify_image
from rlbox.engine.reference import parse_push_destination_default_latest, parse_reference
from rlbox.engine.signature import load_signing_key
from rlbox.errors import EngineError, SpecError
from rlbox.fixes.conditions import map_packages_to_version_or_empty
from rlbox.fixes.render import render_fixes_or_raise_refusal
from rlbox.i18n import _, translate
from rlbox.image.forms import render_apptainer_definition, render_compose
from rlbox.image.names import NO_PROJECT_TAG, format_rlbox_image_tag, map_archive_tag_or_keep_foreign, project_image_tag
from rlbox.image.plan import ImagePlanInputs, build_container_defaults, load_image_plan
from rlbox.image.prune import (
    format_image_size_state_table,
    format_would_remove_lines,
    list_all_rlbox_images,
    select_images,
    sum_bytes_of_distinct_images,
    untag_or_remove_images,
)
from rlbox.job.params import parse_set_options_last_wins
from rlbox.planner.stack_check import require_consistent_stack_or_forced_conflict
from rlbox.run.exec import run_shell_or_command_in_new_container
from rlbox.run.exports import FLEET_FORMATS, ExportRequest, FleetFormat, render_fleet_export
from rlbox.system.files import require_replaceable_or_creatable_file
from rlbox.system.progress import show_byte_progress


@click.group("images", cls=DefaultLsGroup, epilog="Each takes -v, --verbose, -q, --quiet, --json, --project DIR.")
def image_command_group() -> None:
    """List the images that rlbox built in this engine, with their project and state.

    `rlbox prune` removes those that nothing needs.

    \b
    Examples:
      rlbox images
    """


@image_command_group.command("ls")
@pass_app_with_shared_options
def list_rlbox_images(app: App) -> None:
    """List the images that rlbox built in this engine, as `rlbox images` does."""
    rows = list_all_rlbox_images(app.project)
    text = "\n".join(format_image_size_state_table(rows)) if rows else _("no image yet")
    app.output({"images": [asdict(row) for row in rows]}, text)


@image_command_group.command("rm")
@click.argument("names", metavar="IMAGE...", nargs=-1, required=True)
@yes_option
@dry_run_option
@pass_app_with_shared_options
def remove_images_after_confirmation(app: App, names: tuple[str, ...], yes: bool) -> int:
    """Remove images by the names that `rlbox images` lists, or by their target for this project's own.

    One that a container was made from stays, and so does what other images share with it.

    \b
    Examples:
      rlbox images rm rlbox/local:work-0a1b2c --yes
    """
    rows = select_images(app.project, list_all_rlbox_images(app.project), names)
    if held := next((row for row in rows if row.containers), None):
        container = held.containers[0]
        raise EngineError(
            _("container {container} is made from {shown}").format(container=container, shown=held.display_name),
            next_step=_("docker rm {container}, once it is not needed any more").format(container=container),
        )
    size, lines = sum_bytes_of_distinct_images(rows), format_would_remove_lines(rows)
    data = {"images": [{"image": row.name, "bytes": row.size} for row in rows], "bytes": size}
    freed = decimal_size_text(size)
    if app.dry_run:
        text = "\n".join([*lines, translate(_("would free up to {freed}").format(freed=freed))])
        return app.print_dry_run(data, text, _("remove {count} images").format(count=len(rows)))
    for line in lines:
        app.print_status(line)
    confirm_unless_yes(app, yes, _("remove {count} images, up to {freed}").format(count=len(rows), freed=freed))
    untag_or_remove_images(rows)
    app.output(data | {"removed": True}, _("freed up to {freed}").format(freed=freed))
    return 0


@click.command("save")
@target_argument
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@dry_run_option
@pass_app_with_shared_options
def save_image_to_archive(app: App, name: str, file: Path) -> int:
    """Write the image of TARGET to FILE, an OCI archive that `rlbox load` reads with Docker 23 and newer.

    An existing FILE is replaced only once the new one is complete. The image is `rlbox/TARGET:latest` in it,
    of no project.

    \b
    Examples:
      rlbox save local local.oci.tar
    """
    tag = load_image_plan(app.project, name).tag
    file = Path(os.path.abspath(file))
    with app.collecting_refusals_if_dry_run("file"):
        require_replaceable_or_creatable_file(file, "FILE")
    image: dict[str, Any] = {}
    with app.collecting_refusals_if_dry_run("image"):
        image = require_image(tag, name)
    if app.dry_run:
        text = translate(_("write {tag} to {file}").format(tag=tag, file=file))
        would = _("save {tag}").format(tag=tag)
        return app.print_dry_run({"target": name, "image": tag, "file": str(file)}, text, would)
    size = int(image.get("Size") or 0)
    with show_byte_progress(app, translate(_("saving {tag}").format(tag=tag)), size) as on_bytes:
        digest = save_image_archive(size, tag, format_rlbox_image_tag(name, NO_PROJECT_TAG), file, on_bytes)
    written = file.stat().st_size
    data = {"target": name, "image": tag, "file": str(file), "digest": digest, "bytes": written}
    app.output(data, f"{file}  {digest}  {decimal_size_text(written)}")
    app.print_next(_("rlbox load {file} (on the other machine)").format(file=file.name))
    return 0


@click.command("load")
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@dry_run_option
@pass_app_with_shared_options
def load_image_from_archive(app: App, file: Path) -> int:
    """Load the image that `rlbox save` wrote to FILE.

    It first checks the archive's sha256 values, and loads nothing from a damaged archive. --dry-run checks the archive
    and the connection to Docker. The image gets the name of this project's target; images of other projects do not
    change.

    \b
    Examples:
      rlbox load local.oci.tar
    """
    size = file.stat().st_size
    with show_byte_progress(app, translate(_("verifying")), size) as on_bytes:
        archive = read_verified_archive(file, on_bytes)
    tags = [map_archive_tag_or_keep_foreign(app.project, tag) for tag in archive.tags]
    if app.dry_run:
        data = {"file": str(file), "images": tags, "digests": [item.digest for item in archive.manifests]}
        with app.collecting_refusals_if_dry_run("engine"):
            connect_engine()
        whole = _("{file} is complete: {tag}")
        text = "\n".join(translate(whole.format(file=file, tag=tag)) for tag in tags)
        return app.print_dry_run(data, text, _("load {tags}").format(tags=", ".join(tags)))
    with show_byte_progress(app, translate(_("loading")), size) as on_bytes:
        loaded = load_and_verify_image_archive(
            archive, lambda tag: map_archive_tag_or_keep_foreign(app.project, tag), on_bytes
        )
    data = {"file": str(file), "image": loaded.tag, "digest": loaded.manifest_digest, "id": loaded.image_id}
    text = _("{tag}  {id}  {layers} layers, {size}").format(
        tag=loaded.tag, id=loaded.image_id, layers=loaded.layer_count, size=decimal_size_text(size)
    )
    app.output({**data, "layers": loaded.layer_count, "bytes": size}, text)
    app.print_next(f"docker run --rm {loaded.tag}")
    return 0


@click.command("push")
@target_argument
@click.option("--to", "destination", metavar="REF", required=True, help="REGISTRY/NAMESPACE/NAME[:TAG].")
@click.option("--plain-http", is_flag=True, help="Allow http to a registry on another machine.")
@click.option(
    "--sign-key",
    "key_file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Sign the image for cosign, with an ECDSA P-256 key in PEM format.",
)
@force_option
@dry_run_option
@pass_app_with_shared_options
def push_image_to_registry(
    app: App, name: str, destination: str, plain_http: bool, key_file: Path | None, force: bool
) -> int:
    """Push the image of TARGET to REF and print the name that always means these bytes.

    REF without a tag gets `latest`; a REF that ends in '/' gets the target's name. Credentials come from
    `docker login`. Content that the registry already has is not sent again.

    \b
    Examples:
      rlbox push local --to registry.example/team/
      rlbox push local --to 127.0.0.1:5000/team/local:v1
    """
    forced = require_consistent_stack_or_forced_conflict(app, name, force=force)
    reference, plan = parse_push_destination_default_latest(destination, name), load_image_plan(app.project, name)
    key = None
    with app.collecting_refusals_if_dry_run("signing key"):
        key = load_signing_key(key_file) if key_file else None
    image: dict[str, Any] = {}
    with app.collecting_refusals_if_dry_run("image"):
        image = require_image(plan.tag, name)
    return push_and_verify_image(
        app, image, name, plan.tag, reference, plain_http=plain_http, forced_stack_conflict=forced, signing_key=key
    )


@click.command("export")
@click.argument("name", metavar="TARGET|JOB", shell_complete=complete_target_or_job)
@click.option(
    "--format",
    "form",
    type=click.Choice(["compose", "apptainer", *FLEET_FORMATS]),
    required=True,
    help="Format to print.",
)
@click.option(
    "--image",
    "image_or_archive",
    metavar="FROM",
    default="",
    help="A pushed image; NAME@sha256:DIGEST for a scheduler. For apptainer also an archive of `rlbox save`.",
)
@target_profile_and_set_options
@pass_app_with_shared_options
def print_export(
    app: App,
    name: str,
    form: Literal["compose", "apptainer"] | FleetFormat,
    image_or_archive: str,
    target: str | None,
    profiles: tuple[str, ...],
    settings: tuple[str, ...],
) -> None:
    """Print TARGET or JOB as a file for another tool: Compose, Slurm, SkyPilot, dstack, KubeRay and others.

    Compose and Apptainer take a TARGET. The other files run a JOB with its gates, by `rlbox run JOB --place here` in
    the image; for a TARGET they run `rlbox doctor`. What a format cannot express:
    https://github.com/rlbox-dev/rlbox/blob/main/docs/schedulers.md

    \b
    Examples:
      rlbox export local --format compose
      rlbox export vast-5090 --format apptainer --image registry.example/team/vast-5090:v1 > vast-5090.def
      rlbox export smoke --format devcontainer
    """
    if form != "compose" and form != "apptainer":
        request = ExportRequest(
            name=name,
            form=form,
            image=image_or_archive,
            target=target,
            profiles=profiles,
            param_settings=parse_set_options_last_wins(settings),
        )
        text = render_fleet_export(app, request)
    else:
        if target or profiles or settings:
            raise click.UsageError(_("--target, --profile and --set do not go with --format {form}").format(form=form))
        if form == "apptainer" and not image_or_archive:
            raise click.UsageError(_("--format apptainer needs --image: a pushed image, or an archive of `rlbox save`"))
        text = render_export(app, name, form, image_or_archive)
    data = {"target": name, "form": form, "image": image_or_archive, "file": "", "text": text}
    app.output(data, text.rstrip("\n"))
    app.print_next(_NEXT_COMMANDS[form].format(name=name))


_NEXT_COMMANDS: Mapping[str, str] = {
    "compose": "docker compose --file FILE run --rm {name} COMMAND",
    "apptainer": "apptainer build {name}.sif FILE",
    "slurm": "sbatch FILE",
    "skypilot": "sky launch FILE",
    "dstack": "dstack apply -f FILE",
    "kuberay": "kubectl create -f FILE",
    "devcontainer": "devcontainer up --workspace-folder .",
}


def render_export(
    app: App, target_name: str, form: Literal["compose", "apptainer"], image_reference_archive_or_empty: str
) -> str:
    """Return the target as another tool's file; `SpecError` when the image is none that this tool takes."""
    if form == "compose" and image_reference_archive_or_empty.endswith(".tar"):
        raise SpecError(
            _("{image} is an archive, and Compose starts none").format(image=image_reference_archive_or_empty),
            where="--image",
            next_step=_("rlbox load {image}, and leave --image out").format(image=image_reference_archive_or_empty),
        )
    if image_reference_archive_or_empty and not image_reference_archive_or_empty.endswith(".tar"):
        parse_reference(image_reference_archive_or_empty)
    sources = ImagePlanInputs.load(app.project, target_name)
    target, versions = sources.target, map_packages_to_version_or_empty(sources.target, sources.lock)
    container = build_container_defaults(target, render_fixes_or_raise_refusal(sources.fixes, target, versions))
    if form == "apptainer":
        return render_apptainer_definition(target, container, sources.template_dirs, image_reference_archive_or_empty)
    tag = project_image_tag(app.project, target_name)
    return render_compose(
        target, container, sources.template_dirs, local_tag=tag, registry_image=image_reference_archive_or_empty
    )


@click.command("shell", context_settings={"ignore_unknown_options": True})
@target_argument
@click.argument("command", metavar="[-- COMMAND]...", nargs=-1, type=click.UNPROCESSED)
@data_option
@gpus_option
@force_option
@dry_run_option
@pass_app_with_shared_options
def run_shell_in_image(app: App, name: str, command: tuple[str, ...], data: str | None, gpus: str, force: bool) -> int:
    """Open a shell in the image of TARGET, or run COMMAND in it; its exit code is rlbox's.

    \b
    Examples:
      rlbox shell local
      rlbox shell local -- python -c 'import torch; print(torch.__version__)'
    """
    require_consistent_stack_or_forced_conflict(app, name, force=force)
    return run_shell_or_command_in_new_container(app, name, command, data, gpus)
