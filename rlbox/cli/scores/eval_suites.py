"""`rlbox eval suites`: which suites there are."""

from __future__ import annotations

import click

from rlbox.amounts import columns
from rlbox.app import App
from rlbox.cli.options import shared
from rlbox.cli.scores.eval_asked import own_suites, told


@click.command("suites")
@shared
def suites(app: App) -> None:
    """List the suites: those that rlbox brings, and those in suites/ of the project.

    \b
    Examples:
      rlbox eval suites
      rlbox eval suites --json
    """
    from rlbox.evaluation.suites import list_suites, load_suites

    with told():
        found = load_suites(list_suites(own_suites(app)), own_suites(app))
    lines = [(one.name, str(one.rows or "any"), (one.package or one.file), one.title) for one in found]
    table = columns([("suite", "problems", "from", "what"), *lines])
    app.result({"suites": [one.model_dump(mode="json") for one in found]}, "\n".join(table))
