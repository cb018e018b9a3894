"""The second half of `rlbox build --verify`: build again, compare, name what differs."""

from __future__ import annotations

import dataclasses

from rlbox.app import App
from rlbox.engine.connection import engine
from rlbox.errors import WorkFailed
from rlbox.i18n import _
from rlbox.image.builder import BuildRun, build_image, build_view
from rlbox.image.diff import differences
from rlbox.image.names import VERIFY_MARK
from rlbox.image.plan import ImagePlan

_SHOWN = 40


def verify_image(app: App, plan: ImagePlan, run: BuildRun, digest: str) -> None:
    """Build the image once more without cache and compare it with the one whose manifest has `digest`.

    Raises
    ------
    WorkFailed
        They differ; every differing file is named with its layer and the first difference.
    """
    again = f"{plan.tag}{VERIFY_MARK}"
    app.say("building once more, without cache, to compare")
    try:
        with build_view(app) as on_step:
            log, second = build_image(plan, dataclasses.replace(run, tag=again, cache=False), on_step, app.say)
        if digest and digest == second:
            app.say(f"verified: both builds have the digest {digest}")
            return
        if not digest and _layers(plan.tag) == _layers(again):
            app.say("verified: both builds have the same layers; this engine's builder tells no digest to compare")
            return
        found = list(differences(engine().save(plan.tag), engine().save(again)))
        rows = [str(difference) for difference in found[:_SHOWN]]
        more = [f"… and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        raise WorkFailed(
            _("two builds of {target} differ: {digest} and {second}\n{value}").format(
                target=plan.target,
                digest=digest or _("first"),
                second=second or "second",
                value="\n".join(f"  {row}" for row in [*rows, *more]),
            ),
            next_step=_("whole log: {log}").format(log=log),
        )
    finally:
        engine().remove_tag(again)


def _layers(tag: str) -> object:
    return ((engine().find_image(tag) or {}).get("RootFS") or {}).get("Layers")
