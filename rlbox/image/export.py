"""What `rlbox export` does: specs and lock to the text of another tool's file."""

from __future__ import annotations

from rlbox.app import App
from rlbox.engine.reference import parse_reference
from rlbox.errors import SpecError
from rlbox.fixes.conditions import collect_stack_versions
from rlbox.fixes.render import render_fixes
from rlbox.i18n import _
from rlbox.image.forms.apptainer import plan_apptainer
from rlbox.image.forms.compose import plan_compose
from rlbox.image.machine import container_defaults
from rlbox.image.names import target_tag
from rlbox.image.plan import ImageSources, load_image_plan


def export_text(app: App, name: str, form: str, *, image: str, gpus: str = "", gpu_method: str = "gpus") -> str:
    """Return the target in `form` (`compose`, `apptainer`).

    Raises
    ------
    SpecError
        `gpus` does not say which; `image` is no name of an image, or an archive where none can be used; or the lock to
        build from is not current.
    """
    _check_image(form, image)
    recipe = ImageSources.load(app.project, name)
    target, lock, templates = recipe.target, recipe.lock, recipe.templates
    if form == "compose":
        container = container_defaults(target, render_fixes(recipe.fixes, target, collect_stack_versions(target, lock)))
        return plan_compose(
            target,
            container,
            templates,
            local_tag=target_tag(app.project, name),
            registry_image=image,
            gpus=gpus,
            gpu_method=gpu_method,
        )
    if not image:
        load_image_plan(app.project, name).require_lock()
    return plan_apptainer(target, lock, recipe.fixes, recipe.patches, templates, image=image)


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
