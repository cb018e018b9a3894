"""Build an image a second time, and compare digests."""

from __future__ import annotations

import dataclasses

from rlbox.app import App
from rlbox.engine.connection import connect_engine
from rlbox.errors import WorkFailed
from rlbox.i18n import _
from rlbox.image.buildkit import BuildRequest, build_image, show_build_progress
from rlbox.image.image_info import list_image_layers
from rlbox.image.names import VERIFY_TAG_SUFFIX
from rlbox.image.plan import ImagePlan


def verify_build_is_reproducible(app: App, plan: ImagePlan, request: BuildRequest, first_digest: str) -> None:
    """Build the image once more without cache and compare it with the one whose manifest has `first_digest`.

    Raises
    ------
    WorkFailed
        They differ; the layers that do are named.
    """
    again = f"{plan.tag}{VERIFY_TAG_SUFFIX}"
    app.say("building once more, without cache, to compare")
    try:
        with show_build_progress(app) as on_step:
            log, second = build_image(
                plan.target, dataclasses.replace(request, tag=again, use_cache=False), on_step, app.say
            )
        if first_digest and first_digest == second:
            app.say(f"verified: both builds have the digest {first_digest}")
            return
        different = _diff_layers(plan.tag, again)
        if not first_digest and not different:
            app.say("verified: both builds have the same layers; this engine's builder tells no digest to compare")
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
            next_step=_("whole log: {log}").format(log=log),
        )
    finally:
        connect_engine().remove_tag(again)


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
