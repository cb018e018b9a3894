"""What `rlbox doctor` does where a target was applied: a place is examined as its runs find it, not as a shell is."""

from __future__ import annotations

import os
from dataclasses import replace

from rlbox.app import App
from rlbox.doctor.stack_location import find_install_dir
from rlbox.errors import NodeError, SpecError
from rlbox.i18n import _
from rlbox.provision.layout import Layout
from rlbox.provision.probe import read_record
from rlbox.run.here import find_applied_layout, run_rlbox_in_place
from rlbox.values import OWN


def find_place_to_examine(app: App, name: str | None, place: str, data: str | None) -> Layout | None:
    """Return where the place is that is meant: the one around this shell, or TARGET's with `--place here`; else None.

    Raises
    ------
    SpecError, NodeError
        `--place here` names no target, or one that was not applied here; another target is around this shell.
    """
    if place == "here":
        if not name:
            raise SpecError(_("--place here wants a target"), next_step="rlbox doctor TARGET --place here")
        return find_applied_layout(app, name, data)
    layout = Layout(prefix=find_install_dir(os.environ).removesuffix(OWN), data="/")
    if (record := read_record(layout)) is None:
        return None
    if name and name != record.target:
        raise NodeError(
            _("target {target} was applied here").format(target=record.target),
            where=layout.own,
            next_step=f"rlbox doctor {record.target}",
        )
    return replace(layout, data=record.data, venv=record.venv)


def examine_place(app: App, layout: Layout, gpus: str, *, fix: bool, budget_s: float) -> int:
    """Examine a place in the environment that its runs have; return rlbox's exit code."""
    words = ["doctor", "--around", *["--fix"] * fix, *["--dry-run"] * app.dry_run, *app.words]
    words += [f"--budget={budget_s:g}"] if budget_s else []
    return run_rlbox_in_place(app, layout, tuple(words), gpus)
