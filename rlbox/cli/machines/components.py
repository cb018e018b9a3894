"""`rlbox components`: do the parts of a stack work, in seconds."""

from __future__ import annotations

import click

from rlbox.app import App
from rlbox.cli.offered import complete_target
from rlbox.cli.options import Amount, gpus_option, place_option, shared


@click.command()
@click.argument("name", metavar="[TARGET]", required=False, shell_complete=complete_target)
@click.option("--file", "files", metavar="FILE", multiple=True, help="A data file that must be there and whole.")
@click.option("--python", metavar="FILE", default="", help="Test this interpreter's packages, of any environment.")
@click.option("--data", metavar="DIR", help="Host directory that is the data disk [RLBOX_DATA].")
@click.option(
    "--timeout",
    type=Amount(),
    metavar="SECONDS",
    default=300.0,
    show_default=True,
    help="Time limit for all parts together.",
)
@place_option
@gpus_option
@shared
def verb(
    app: App,
    name: str | None,
    files: tuple[str, ...],
    python: str,
    data: str | None,
    place: str,
    gpus: str,
    timeout: float,
) -> int:
    """Test the parts of the stack: torch, CUDA, linking, Triton, NCCL, Ray, each framework, data files.

    In a container of an image it tests what is there; with TARGET, from a host, the target's image in a container, or
    with --place here what `rlbox apply` laid on this machine. What a part needs a GPU for is not tested where there is
    none. A part that fails gives exit code 1, one that is not done in time 7.

    \b
    Examples:
      rlbox components local
      rlbox shell local -- rlbox components
      rlbox components --python /usr/bin/python3
    """
    from rlbox.run.components import components_at, components_here, is_around

    if not name or python or is_around(name):
        return components_here(app, python, files, timeout)
    return components_at(app, place, name, data, gpus, files, timeout)
