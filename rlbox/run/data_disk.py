"""Which data disk a verb about runs looks at, and the runs on it brought up to date."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from rlbox.app import App
from rlbox.engine.act.data_disk import data_folder
from rlbox.image.act.plans import image_plan
from rlbox.machine.act.identity import user_name
from rlbox.record.act.disk_hold import Holder
from rlbox.record.act.ledger import Ledger, Settled
from rlbox.run.places import reach
from rlbox.run.remote import go_over


def disk_of(app: App, target: str, data: str | None, env: Mapping[str, str] | None = None) -> Ledger:
    """Return the data disk of `--data`, `RLBOX_DATA` or the target.

    With an engine on another machine the whole command is carried out there, with the variables `env`, and this does
    not return.
    """
    go_over(app, target, data, env)
    return disk_here(app, target, data)


def disk_here(app: App, target: str, data: str | None) -> Ledger:
    """Return the data disk of `--data`, `RLBOX_DATA` or the target, on this machine."""
    return Ledger(folder=folder_of(app, target, data), reach=reach)


def folder_of(app: App, target: str, data: str | None) -> Path:
    """Return where the data disk of `--data`, `RLBOX_DATA` or the target is on this machine; absolute."""
    return data_folder(image_plan(app.project, target).container, data)


def myself(what: str) -> Holder:
    """Return this command line as holder of a data disk."""
    return Holder(what=what, user=user_name(), uid=os.getuid(), host=socket.gethostname())


def bring_up_to_date(app: App, ledger: Ledger) -> Settled:
    """Settle the dead runs of a data disk, and say what could not be settled."""
    found = ledger.settle(myself("the ends of runs"))
    for run, why in found.unsettled.items():
        app.say(f"run {run} {why}")
    return found
