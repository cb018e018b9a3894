"""`rlbox export`: a target in the form of another tool."""

from __future__ import annotations

from pathlib import Path

import click

from rlbox.app import App
from rlbox.cli.offered import complete_target
from rlbox.cli.options import dry_run, shared
from rlbox.image.forms.compose import WAYS


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.option("--to", "form", type=click.Choice(["compose", "apptainer"]), required=True, help="Format to print.")
@click.option(
    "--image", metavar="FROM", default="", help="A pushed image, or for apptainer an archive of `rlbox save`."
)
@click.option("--gpus", metavar="WHICH", default="", help="compose: 2, 0,1, device=0, all, none; else the target's.")
@click.option("--way", type=click.Choice(WAYS), help="compose: how its engine gives GPUs; default: gpus.")
@click.option("--output", "-o", metavar="FILE", help="Write FILE instead of printing.")
@dry_run
@shared
def verb(app: App, name: str, form: str, image: str, gpus: str, way: str | None, output: str | None) -> int:
    """Print TARGET as compose.yaml, or as an Apptainer definition for a site without Docker.

    Without --image the compose file starts what `rlbox build` made, and the definition builds from the target's locked
    files alone. What neither format can express: https://github.com/rlbox-dev/rlbox/blob/main/docs/export.md

    \b
    Examples:
      rlbox export local --to compose
      rlbox export local --to apptainer --output local.def
      rlbox export vast-5090 --to apptainer --image registry.example/team/vast-5090:v1
    """
    from rlbox.image.export import export_text
    from rlbox.system.files import require_writable_file, write_atomic

    if (gpus or way) and form != "compose":
        raise click.UsageError("--gpus and --way are for --to compose: apptainer takes --nv when it starts")
    if output:
        with app.checking("file"):
            require_writable_file(Path(output), "another with --output")
    text = export_text(app, name, form, image=image, gpus=gpus, way=way or "gpus")
    data = {"target": name, "form": form, "image": image, "file": output or "", "text": text}
    if app.dry_run:
        would = f"write {output}" if output else "print this, and write nothing"
        return app.planned(data, output or text.rstrip("\n"), would)
    if output:
        write_atomic(Path(output), text)
    app.result(data, output or text.rstrip("\n"))
    app.say(f"next: {_next(name, form, output or 'FILE', image)}")
    return 0


def _next(name: str, form: str, file: str, image: str) -> str:
    if form == "compose":
        return f"docker compose --file {file} run --rm {name} COMMAND"
    context = "" if image else f"rlbox fetch {name}, rlbox render {name} --context FOLDER --hermetic, and in FOLDER: "
    return f"{context}apptainer build {name}.sif {file}"
