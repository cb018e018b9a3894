"""`rlbox show`: a spec as rlbox understands it, or an image as it explains itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from rlbox.app import App
from rlbox.cli.offered import complete_target
from rlbox.cli.options import shared
from rlbox.errors import SpecError

if TYPE_CHECKING:
    from rlbox.job.job import Job


@click.command()
@click.argument("name", metavar="[NAME]", required=False, shell_complete=complete_target)
@click.option(
    "--schema",
    type=click.Choice(["target", "job", "profile", "fix"]),
    help="Print the JSON Schema of a file, for editors.",
)
@shared
def verb(app: App, name: str | None, schema: str | None) -> None:
    """Print the target or job NAME, completed with includes and defaults, after checking it; or explain an image.

    \b
    Examples:
      rlbox show local
      rlbox show smoke --json
      rlbox show rlbox/local:work-0a1b2c
      rlbox show --schema target > target.schema.json
    """
    if schema:
        from rlbox.cli.schema import schema_of

        click.echo(json.dumps(schema_of(schema), indent=2))
        return
    if not name:
        raise click.UsageError("name a target, a job or an image, or give --schema")
    if name not in app.project.targets() and name not in app.project.jobs():
        from rlbox.image.show import show_image

        if show_image(app, name):
            return
    kind, data = _load(app, name)
    rest, told = data, []
    if kind == "target":
        told = [f"# {line}" for line in _proof(app, name)]
    else:
        from rlbox.job.view import TOLD, job_lines

        told = job_lines(_job(app, name))
        rest = {key: value for key, value in data.items() if key not in TOLD or not value}
    app.result({kind: data}, "\n".join([f"# {kind} {name}", *told, *map(str, _lines(rest))]))


def _proof(app: App, name: str) -> list[str]:
    from rlbox.fixes.load import load_fixed_target
    from rlbox.planner.stack_proof import proof_lines
    from rlbox.target.lock import load_lock

    return proof_lines(load_fixed_target(app.project, name).target, load_lock(app.project.lock_file(name)))


def _job(app: App, name: str) -> Job:
    from rlbox.job.load import load_job

    return load_job(app.project, name)


def _load(app: App, name: str) -> tuple[str, dict[str, Any]]:
    from rlbox.fixes.load import load_fixed_target

    targets, jobs = app.project.targets(), app.project.jobs()
    if name in jobs and name not in targets:
        return "job", _job(app, name).model_dump(mode="json")
    if name not in targets:
        from rlbox.config.check import suggest

        known = [*targets, *jobs]
        raise SpecError(
            f"unknown target or job {name!r}{suggest(name, known)}",
            next_step=f"choose one of: {', '.join(known)}",
        )
    return "target", load_fixed_target(app.project, name).target.model_dump(mode="json")


def _lines(data: Any, path: str = "") -> list[str]:
    """Return one `path = value` line for every leaf."""
    if isinstance(data, dict) and data:
        return [line for key, value in data.items() for line in _lines(value, f"{path}.{key}" if path else key)]
    if isinstance(data, list) and data and isinstance(data[0], dict):
        return [line for number, value in enumerate(data) for line in _lines(value, f"{path}[{number}]")]
    return [f"{path} = {json.dumps(data, ensure_ascii=False)}"]
