"""`rlbox vast`: instances of vast.ai for a target."""

from __future__ import annotations

import click

from rlbox.cli.help import CommandGroup
from rlbox.cli.rented.vast_create import create
from rlbox.cli.rented.vast_destroy import destroy
from rlbox.cli.rented.vast_fetch import fetch
from rlbox.cli.rented.vast_instances import list_them, logs, ssh, start, stop
from rlbox.cli.rented.vast_search import search
from rlbox.cli.rented.vast_up import up


@click.group(cls=CommandGroup, epilog="Each takes -v, --verbose, -q, --quiet, --json, --dry-run, --project DIR.")
def verb() -> None:
    """Rent a machine on vast.ai, run a job there, fetch everything, and shut it down.

    The API key is VAST_API_KEY, or what the platform's own client stored.

    \b
    Examples:
      rlbox vast search vast-5090 --dry-run
      rlbox vast up sft --image registry.example/me/vast-5090:1 --dry-run
    """


for command in (up, list_them, logs, ssh, stop, start, fetch, destroy, search, create):
    verb.add_command(command)
