"""What `rlbox export` does: specs and lock to the text of another tool's file."""

from __future__ import annotations

from typing import Literal

from rlbox.app import App
from rlbox.engine.reference import parse_reference
from rlbox.errors import SpecError
from rlbox.fixes.conditions import list_stack_versions
from rlbox.fixes.render import select_and_render_fixes
from rlbox.i18n import _
from rlbox.image.forms.apptainer import render_apptainer_definition
from rlbox.image.forms.compose import render_compose
from rlbox.image.machine import build_container_defaults
from rlbox.image.names import project_image_tag
from rlbox.image.plan import ImageSources, load_image_plan


def render_export(
    app: App,
    target_name: str,
    form: Literal["compose", "apptainer"],
    *,
    image_reference: str,
    gpus: str = "",
    gpu_method: Literal["gpus", "cdi"] = "gpus",
) -> str:
    """Return the target in `form` (`compose`, `apptainer`).

    Raises
    ------
    SpecError
        `gpus` does not say which; `image_reference` is no name of an image, or an archive where none can be used; or
        the lock to build from is not current.
    """
    _check_image(form, image_reference)
    recipe = ImageSources.load(app.project, target_name)
    target, lock, templates = recipe.target, recipe.lock, recipe.template_dirs
    if form == "compose":
        container = build_container_defaults(
            target, select_and_render_fixes(recipe.fixes, target, list_stack_versions(target, lock))
        )
        return render_compose(
            target,
            container,
            templates,
            local_tag=project_image_tag(app.project, target_name),
            registry_image=image_reference,
            gpus=gpus,
            gpu_method=gpu_method,
        )
    if not image_reference:
        load_image_plan(app.project, target_name).require_current_lock()
    return render_apptainer_definition(
        target, lock, recipe.fixes, recipe.patch_texts, templates, image_reference=image_reference
    )


def _check_image(form: str, image: str) -> None:
    if not image.endswith(".tar"):
        if image:
            parse_reference(image)
    elif form == "compose":
        raise SpecError(
            _("{image} is an archive, and Compose starts none").format(image=image),
            where="--image",
            next_step=f"rlbox load {image}, and leave --image out",
        )
