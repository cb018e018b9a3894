"""An image that is what a target's specs say, whatever project built it: it gets this project's name, too."""

from __future__ import annotations

from typing import Any

from rlbox.app import App
from rlbox.engine.connection import engine, find_image, no_image
from rlbox.engine.reference import parse_reference
from rlbox.image.context import build_labels, context_entries, outdated
from rlbox.image.labels import BUILD_LABEL
from rlbox.image.names import NO_PROJECT, VERIFY_MARK, image_tag, split_tag
from rlbox.image.plan import ImagePlan


def own_image(app: App, plan: ImagePlan) -> dict[str, Any]:
    """Return the image of a target under this project's name, which one of another project that fits gets, too.

    Raises
    ------
    EngineError
        There is none, or the engine does not answer.
    """
    image = find_image(plan.tag)
    image = adopt(app, plan) if image is None else image
    if image is None:
        raise no_image(plan.tag, plan.target)
    return image


def adopt(app: App, plan: ImagePlan) -> dict[str, Any] | None:
    """Give an image of the engine that is what the specs say this project's name, and return it; None without one.

    Its checks are run unless this user has seen them hold. A dry run gives no name.
    """
    wanted = build_labels(context_entries(plan), plan)[BUILD_LABEL]
    for row in engine().list_images(f"{BUILD_LABEL}={wanted}"):
        names = [tag for tag in row.get("RepoTags") or () if split_tag(tag)[0] and not tag.endswith(VERIFY_MARK)]
        if not names:  # one without a name may be what checks refused
            continue
        if app.dry_run:
            app.dry.first.append(f"{names[0]} is what the specs say, and gets the name {plan.tag}, too")
            return dict(engine().find_image(names[0]) or row)
        app.say(f"{names[0]} is what the specs say: it is {plan.tag}, too, and nothing is built")
        from rlbox.image.check import check_image  # most builds find nothing to adopt, and many nothing to do

        engine().tag(row["Id"], parse_reference(plan.tag))
        check_image(plan, again=False)
        return engine().find_image(plan.tag)
    return None


def told_of_old(plan: ImagePlan) -> str:
    """Return what is to be said of an image that an rlbox of before kept under a name for all; empty without one."""
    tag = image_tag(plan.target, NO_PROJECT)
    image = find_image(tag)
    why = outdated(plan, image) if image else ""
    return f"{tag} is of an rlbox that had one name for all projects, and does not fit: {why}" if why else ""
