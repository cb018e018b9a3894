"""`rlbox vast`: instances of vast.ai for a target."""

from __future__ import annotations

import click

from rlbox.cli.machines.vast_create import create
from rlbox.cli.machines.vast_destroy import destroy
from rlbox.cli.machines.vast_search import search


@click.group(epilog="Each takes -v, --verbose, -q, --quiet, --json, --dry-run, --project DIR.")
def verb() -> None:
    """Search offers of vast.ai that fit a target, create an instance of it, destroy it.

    The API key is VAST_API_KEY, or what `vastai set api-key` stored.

    \b
    Examples:
      rlbox vast search vast-5090 --dry-run
      rlbox vast create vast-5090 --image registry.example/me/vast-5090:1 --dry-run
    """


for command in (search, create, destroy):
    verb.add_command(command)
