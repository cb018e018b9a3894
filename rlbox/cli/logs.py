"""`rlbox logs`: what the stages and services of a run wrote."""

from __future__ import annotations

import shutil
import sys

import click

from rlbox.cli.app import App
from rlbox.cli.options import shared
from rlbox.errors import SpecError


@click.command()
@click.argument("name", metavar="[RUN]", required=False)
@click.option("--stage", metavar="NAME", help="Only this stage.")
@click.option("--log", metavar="NAME", help="Only this log: stage, or the name of a service.")
@click.option("--target", default="local", metavar="NAME", help="Target whose data disk to look at.")
@click.option("--data", metavar="DIR", help="Host directory that is the data disk [RLBOX_DATA].")
@shared
def verb(app: App, name: str | None, stage: str | None, log: str | None, target: str, data: str | None) -> None:
    """Print the logs of RUN (the latest by default), stage after stage.

    \b
    Examples:
      rlbox logs
      rlbox logs smoke-20260101 --stage rollout-only --log vllm
    """
    from rlbox.act.disk import data_folder
    from rlbox.act.run_folder import find_run

    folder = find_run(data_folder(app.image_plan(target).container, data), name)
    paths = [
        path
        for path in sorted((folder / "stages").glob("*/*.log"))
        if (stage is None or path.parent.name.partition("-")[2] == stage) and (log is None or path.stem == log)
    ]
    if not paths:
        raise SpecError("no such log", where=str(folder / "stages"), next_step=f"rlbox logs {folder.name}")
    if app.as_json:
        app.result({"run": folder.name, "logs": [str(path) for path in paths]}, "")
        return
    for path in paths:
        app.say(f"==> {path.relative_to(folder)} <==")
        with open(path, "rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.flush()
