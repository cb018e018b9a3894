"""What `rlbox export` does: a target to the text of another tool's file."""

from __future__ import annotations

from typing import Literal

from rlbox.app import App
from rlbox.engine.reference import parse_reference
from rlbox.errors import SpecError
from rlbox.fixes.conditions import list_stack_versions
from rlbox.fixes.render import select_and_render_fixes
from rlbox.i18n import _
from rlbox.image.forms import render_apptainer_definition, render_compose
from rlbox.image.names import project_image_tag
from rlbox.image.plan import ImageSources, build_container_defaults


def render_export(app: App, target_name: str, form: Literal["compose", "apptainer"], image_reference: str) -> str:
    """Return the target in `form`; `SpecError` when `image_reference` is no image that this tool takes."""
    if form == "compose" and image_reference.endswith(".tar"):
        raise SpecError(
            _("{image} is an archive, and Compose starts none").format(image=image_reference),
            where="--image",
            next_step=f"rlbox load {image_reference}, and leave --image out",
        )
    if image_reference and not image_reference.endswith(".tar"):
        parse_reference(image_reference)
    sources = ImageSources.load(app.project, target_name)
    target, versions = sources.target, list_stack_versions(sources.target, sources.lock)
    container = build_container_defaults(target, select_and_render_fixes(sources.fixes, target, versions))
    if form == "apptainer":
        return render_apptainer_definition(target, container, sources.template_dirs, image_reference)
    tag = project_image_tag(app.project, target_name)
    return render_compose(target, container, sources.template_dirs, local_tag=tag, registry_image=image_reference)
