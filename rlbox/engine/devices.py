"""The devices of this machine that a target hands to its containers: are they there."""

from __future__ import annotations

import os

from rlbox.app import App
from rlbox.engine.address import engine_is_here
from rlbox.engine.limits import ContainerDefaults
from rlbox.errors import NodeError
from rlbox.i18n import _
from rlbox.system.identity import is_in_image


def check_devices(app: App, limits: ContainerDefaults) -> None:
    """Say which devices a container gets, and refuse one that this machine lacks; elsewhere the engine does.

    Raises
    ------
    NodeError
        A device, or folder of them, is not there.
    """
    if not limits.devices:
        return
    here = engine_is_here() and not is_in_image()
    if here and (missing := [path for path in limits.devices if not os.path.exists(path)]):
        raise NodeError(
            _("this machine has no {missing}, which the target hands to its containers").format(missing=missing[0]),
            where=missing[0],
            next_step=_("load its driver, or take it out of [run.devices] of the target"),
        )
    app.say(f"devices: {', '.join(sorted(limits.devices))}")
