"""`rlbox vast ls`, `ssh`, `logs`, `stop`, `start`: the instances that rlbox created, and what goes on there."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.options import Amount, dry_run, shared

if TYPE_CHECKING:
    from rlbox.vast.request import Instance

_ANY = {"ignore_unknown_options": True}


@click.command("ls")
@shared
def list_them(app: App) -> None:
    """List the instances that rlbox created, with what each costs; those of others are not shown.

    \b
    Example:
      rlbox vast ls --help
    """
    from rlbox.amounts import columns
    from rlbox.vast.account import list_instances

    own = [one for one in list_instances().values() if one.own]
    rows = [(str(one.id), one.label, one.status or "created", f"{one.price:.3f}", one.ssh) for one in own]
    data = [{"id": one.id, "label": one.label, "status": one.status, "price": one.price, "ssh": one.ssh} for one in own]
    text = "\n".join(columns([("id", "label", "state", "$/h", "reached by"), *rows])) if rows else "no instance"
    app.result({"instances": data}, text)


@click.command(context_settings=_ANY)
@click.argument("number", metavar="ID", type=int)
@click.argument("words", metavar="[COMMAND]...", nargs=-1, type=click.UNPROCESSED)
@shared
def ssh(app: App, number: int, words: tuple[str, ...]) -> int:
    """Open a shell on instance ID, or run one command there and return its exit code.

    \b
    Example:
      rlbox vast ssh --help
    """
    from rlbox.ssh.connection import run_terminal
    from rlbox.vast.account import read_own
    from rlbox.vast.instance import address_of

    return run_terminal(address_of(read_own(number)), words[0] if len(words) == 1 else shlex.join(words))


@click.command()
@click.argument("number", metavar="ID", type=int)
@click.option("-f", "--follow", is_flag=True, help="Follow until the run ends.")
@shared
def logs(app: App, number: int, follow: bool) -> int:
    """Print the logs of the latest run on instance ID.

    \b
    Example:
      rlbox vast logs --help
    """
    from rlbox.ssh.connection import run_terminal
    from rlbox.vast.account import read_own
    from rlbox.vast.instance import address_of
    from rlbox.vast.stay import find_tool

    one = read_own(number)
    disk = disk_of(app, one)
    command = f"{find_tool(disk)}; exec $tool/bin/rlbox logs --data {shlex.quote(disk)}" + (" -f" if follow else "")
    return run_terminal(address_of(one), command)


@click.command()
@click.argument("number", metavar="ID", type=int)
@dry_run
@shared
def stop(app: App, number: int) -> int:
    """Stop instance ID: only its disk, which is kept, is billed. A run in progress is cut off; `start` resumes it.

    \b
    Example:
      rlbox vast stop --help
    """
    from rlbox.vast.account import read_own, set_instance

    one = read_own(number)
    if app.dry_run:
        return app.planned({"instance": number}, f"{one.id}  {one.label}  {one.status}", f"stop instance {number}")
    set_instance(number, "stopped")
    app.result({"instance": number, "state": "stopped"}, f"{number}  stops")
    app.say(f"next: rlbox vast start {number}, or rlbox vast destroy {number}: its disk is billed until then")
    return 0


@click.command()
@click.argument("number", metavar="ID", type=int)
@click.option(
    "--timeout",
    type=Amount(),
    default=1800.0,
    metavar="SECONDS",
    show_default=True,
    help="How long to wait until it is ready.",
)
@dry_run
@shared
def start(app: App, number: int, timeout: float) -> int:
    """Start instance ID again, and wait until it is ready; a job of `vast up` that was cut off resumes by itself.

    \b
    Example:
      rlbox vast start --help
    """
    from rlbox.cli.rented.vast_create import wait_for
    from rlbox.ssh.connection import SshConnection
    from rlbox.vast.account import read_own, set_instance
    from rlbox.vast.instance import address_of, wait_ready

    one = read_own(number)
    if app.dry_run:
        return app.planned({"instance": number}, f"{one.id}  {one.label}  {one.status}", f"start instance {number}")
    set_instance(number, "running")
    ready = wait_for(app, number, timeout, started=True)
    with SshConnection(address_of(ready), timeout) as connection:
        wait_ready(connection, disk_of(app, one), number, timeout, app.say)
    app.result({"instance": number, "state": "running", "ssh": ready.ssh}, f"{number}  {ready.ssh}")
    app.say(f"next: rlbox vast logs {number} -f")
    return 0


def disk_of(app: App, one: Instance) -> str:
    """Return where the data disk of an instance is: where its target has it."""
    from rlbox.target.load import load_target

    return load_target(app.project, one.target).target.disk.mount
