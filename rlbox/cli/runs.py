"""`rlbox runs`: what ran."""

from __future__ import annotations

import click

from rlbox.cli.app import App
from rlbox.cli.options import shared


@click.command()
@click.option("--target", default="local", metavar="NAME", help="Target whose data disk to look at.")
@click.option("--data", metavar="DIR", help="Host directory that is the data disk [RLBOX_DATA].")
@shared
def verb(app: App, target: str, data: str | None) -> None:
    """List the runs on the data disk, the latest first.

    \b
    Examples:
      rlbox runs
      rlbox runs --json
    """
    from rlbox.act.disk import data_folder
    from rlbox.act.run_folder import list_runs
    from rlbox.act.run_state import load_run_state
    from rlbox.errors import SpecError

    rows = []
    for folder in list_runs(data_folder(app.image_plan(target).container, data)):
        try:
            state = load_run_state(folder)
            cause = next((stage.cause.what for stage in state.stages if stage.cause), "")
            rows.append({"run": folder.name, "state": state.state, "started_at": state.started_at, "cause": cause})
        except SpecError as error:
            rows.append({"run": folder.name, "state": "unknown", "started_at": "", "cause": error.what})
    text = "\n".join(f"{row['run']:<36} {row['state']:<12} {row['cause']}".rstrip() for row in rows)
    app.result({"runs": rows}, text or "no run yet")
