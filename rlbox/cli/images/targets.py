"""`rlbox targets`: what there is."""

from __future__ import annotations

from typing import Any

import click

from rlbox.amounts import padded
from rlbox.app import App
from rlbox.cli.options import shared
from rlbox.errors import SpecError


@click.command()
@shared
def verb(app: App) -> int:
    """List targets and jobs, with where each comes from; exit code 2 when the file of one cannot be read.

    A target for GPUs says where its lock ran; it is untested until a kept run had that lock. `rlbox stack` says more.

    \b
    Examples:
      rlbox targets
      rlbox targets --json
    """
    from rlbox.config.load import load_toml

    rows: list[dict[str, Any]] = []
    for kind, found in (("target", app.project.targets()), ("job", app.project.jobs())):
        for name, path in found.items():
            own = path.is_relative_to(app.project.folder)
            row = {"kind": kind, "name": name, "source": "project" if own else "shipped", "problem": ""}
            try:
                row["title"] = str(load_toml(path, app.project).get("title", ""))
            except SpecError as error:  # the others are there all the same
                row |= {"title": "", "problem": error.what}
            unproven, mark = _proof(app, name) if kind == "target" else (False, "")
            rows.append({**row, "unproven": unproven, "proof": mark})
    width = max((len(row["name"]) for row in rows), default=0)
    app.result({"found": rows}, "\n".join(_line(row, width) for row in rows))
    return SpecError.exit_code if any(row["problem"] for row in rows) else 0


def _proof(app: App, name: str) -> tuple[bool, str]:
    """Return whether a target's lock never ran on GPUs, and where it did; nothing of one that cannot be loaded."""
    from rlbox.planner.stack_proof import is_unproven, proof_mark
    from rlbox.target.load import load_target
    from rlbox.target.lock import load_lock

    try:
        target, lock = load_target(app.project, name).target, load_lock(app.project.lock_file(name))
    except SpecError:
        return False, ""
    return is_unproven(target, lock), proof_mark(target, lock)


def _line(row: dict[str, Any], width: int) -> str:
    told = row["title"] or row["problem"]
    if row["proof"]:
        told = f"{told} ({row['proof']})" if told else row["proof"]
    return f"{row['kind']:<7} {padded(row['name'], width)}  {told}"
