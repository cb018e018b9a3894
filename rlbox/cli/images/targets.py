"""`rlbox targets`: what there is."""

from __future__ import annotations

import click

from rlbox.app import App
from rlbox.cli.options import shared


@click.command()
@shared
def verb(app: App) -> None:
    """List targets and jobs, with where each comes from.

    \b
    Examples:
      rlbox targets
      rlbox targets --json
    """
    from rlbox.spec.load import load_toml

    rows = []
    for kind, found in (("target", app.project.targets()), ("job", app.project.jobs())):
        for name, path in found.items():
            own = path.is_relative_to(app.project.folder)
            title = str(load_toml(path, app.project).get("title", ""))
            rows.append({"kind": kind, "name": name, "title": title, "source": "project" if own else "shipped"})
    width = max((len(row["name"]) for row in rows), default=0)
    text = "\n".join(f"{row['kind']:<7} {row['name']:<{width}}  {row['title']}" for row in rows)
    app.result({"found": rows}, text)
