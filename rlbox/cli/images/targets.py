"""`rlbox targets`: what there is."""

from __future__ import annotations

import click

from rlbox.amounts import padded
from rlbox.app import App
from rlbox.cli.options import shared
from rlbox.errors import SpecError
from rlbox.printable import isolated, of_spec


@click.command()
@shared
def verb(app: App) -> int:
    """List targets and jobs, with where each comes from; exit code 2 when the file of one cannot be read.

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
            row = {"kind": kind, "name": name, "source": "project" if own else "shipped", "problem": ""}
            try:
                row["title"] = str(load_toml(path, app.project).get("title", ""))
            except SpecError as error:  # the others are there all the same
                row |= {"title": "", "problem": error.what}
            rows.append(row)
    width = max((len(row["name"]) for row in rows), default=0)
    text = "\n".join(
        f"{row['kind']:<7} {padded(isolated(row['name']), width)}  {of_spec(row['title']) or row['problem']}"
        for row in rows
    )
    app.result({"found": rows}, text)
    return SpecError.exit_code if any(row["problem"] for row in rows) else 0
