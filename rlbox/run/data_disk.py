"""Which data disk a verb about runs looks at, spelt once, and the runs on it brought up to date."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlbox.app import App
from rlbox.cli.options import complete_target
from rlbox.image.act.plans import image_plan

if TYPE_CHECKING:
    from rlbox.record.act.disk_lock import Holder
    from rlbox.record.act.reconcile import Reconciled

DEFAULT_TARGET = "local"


def disk_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--target` and `--data`, which say where the runs are."""
    for option in (
        click.option("--data", metavar="DIR", help="Host directory that is the data disk [RLBOX_DATA]."),
        click.option(
            "--target",
            default=DEFAULT_TARGET,
            metavar="NAME",
            shell_complete=complete_target,
            help="Target whose data disk to look at.",
        ),
    ):
        function = option(function)
    return function


def disk_of(app: App, target: str | None, data: str | None) -> Path:
    """Return the data disk of `--data`, `RLBOX_DATA` or the target; absolute.

    With an engine on another machine the whole command is carried out there, and this does not return.
    """
    from rlbox.engine.act.data_disk import data_folder
    from rlbox.run.remote import go_over

    go_over(app, target or DEFAULT_TARGET, data)
    return data_folder(image_plan(app.project, target or DEFAULT_TARGET).container, data)


def myself(what: str) -> Holder:
    """Return this command line as holder of a data disk."""
    from rlbox.machine.act.identity import user_name
    from rlbox.record.act.disk_lock import Holder

    return Holder(what=what, user=user_name(), uid=os.getuid(), host=socket.gethostname())


def bring_up_to_date(app: App, folder: Path) -> Reconciled:
    """Settle the dead runs of a data disk, and say what could not be settled."""
    from rlbox.record.act.reconcile import reconcile

    found = reconcile(folder, myself("the ends of runs"))
    for run, why in found.unsettled.items():
        app.say(f"run {run} {why}")
    return found
