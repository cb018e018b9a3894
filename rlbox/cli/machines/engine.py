"""`rlbox engine`: a Docker engine for builds and runs on this machine."""

from __future__ import annotations

import click

from rlbox.app import App
from rlbox.cli.options import dry_run, shared


@click.command()
@click.argument("action", type=click.Choice(["status", "up"]))
@dry_run
@shared
def verb(app: App, action: str) -> int:
    """Show the state of this machine's Docker engine, or start one where none answers.

    An engine that answers is used as it is. Otherwise, as root on Debian or Ubuntu, `up` installs and starts one, with
    what builds need, and says how to stop it. Exit code 4 where none is possible, or where status finds something to
    do.

    \b
    Examples:
      rlbox engine status
      rlbox engine up
    """
    from rlbox.engine.bring import bring_engine, plan_engine, probe_status
    from rlbox.errors import EngineError

    if app.dry_run:
        if action != "up":
            raise click.UsageError("--dry-run goes with up.")
        left: tuple[str, ...] = ()
        with app.checking("engine"):
            left = plan_engine()
        would = "; ".join(left) or "change nothing: an engine answers, and images can be built"
        return app.planned({"left": list(left)}, "\n".join(left), would)
    if action == "up":
        bring_engine(app.say)
    status = probe_status()
    app.result(status.as_json(), status.text())
    return 0 if status.ready else EngineError.exit_code
