"""What `rlbox export` does: specs and lock to the text of another tool's file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlbox.app import App
from rlbox.errors import NodeError, SpecError
from rlbox.image.act.plans import image_plan

if TYPE_CHECKING:
    from rlbox.image.forms.apptainer import Exported


def export_text(app: App, name: str, form: str, *, image: str, gpus: str = "", way: str = "gpus") -> str:
    """Return the target in `form` (`compose`, `apptainer`).

    Raises
    ------
    SpecError
        `gpus` does not say which; `image` is no name of an image, or an archive where none can be used; or the lock to
        build from is not current.
    """
    from rlbox.files.act.folders import cache_folder, make_folder
    from rlbox.image.forms.apptainer import plan_apptainer
    from rlbox.image.forms.compose import plan_compose

    _check_image(form, image)
    templates, bytecode = app.project.template_folders(), make_folder(cache_folder("templates"))
    exported = _exported(app, name)
    if form == "compose":
        from rlbox.image.machine import container_defaults

        container = container_defaults(exported.target, exported.baked)
        return plan_compose(exported.target, container, templates, bytecode, image=image, gpus=gpus, way=way)
    if not image:
        from rlbox.lock.state import require_lock

        require_lock(name, image_plan(app.project, name).lock)
    return plan_apptainer(exported, templates, bytecode, image=image)


def _exported(app: App, name: str) -> Exported:
    from rlbox.fixes.load import load_fixed_target
    from rlbox.image.forms.apptainer import plan_exported
    from rlbox.target.lock import load_lock

    loaded = load_fixed_target(app.project, name)
    patches = app.project.patches(name, loaded.target.own_patches)
    texts = {path.name: path.read_text("utf-8") for path in patches}
    return plan_exported(loaded.target, load_lock(app.project.lock_file(name)), loaded.fixes, texts)


def _check_image(form: str, image: str) -> None:
    from rlbox.engine.reference import parse_reference

    if not image.endswith(".tar"):
        if image:
            parse_reference(image)
    elif form == "compose":
        raise SpecError(
            f"{image} is an archive, and Compose starts none",
            where="--image",
            next_step=f"rlbox load {image}, and leave --image out",
        )


def write_export(path: Path, text: str) -> None:
    """Write the file whole; `NodeError` when it cannot be written."""
    from rlbox.files.act.folders import write_atomic

    try:
        write_atomic(path, text)
    except OSError as error:
        raise NodeError(
            f"the export cannot be written: {error.strerror}", where=str(path), next_step="name another FILE"
        ) from error
