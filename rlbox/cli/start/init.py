"""`rlbox init`: the first files of somebody's own."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.options import dry_run, shared
from rlbox.cli.own_files import write_own
from rlbox.errors import SpecError
from rlbox.printable import isolated

if TYPE_CHECKING:
    from rlbox.scaffold.start import MachineChoice


@click.command()
@click.argument("name", metavar="[NAME]", default="")
@click.option("--machine", metavar="MACHINE", default="", help="cpu, a800, 5090 or cluster; asked on a terminal.")
@click.option("--framework", metavar="FRAMEWORK", default="", help="verl, slime, openrlhf, trl, …: what its image has.")
@dry_run
@shared
def verb(app: App, name: str, machine: str, framework: str) -> int:
    """Write a target and a job of your own, by the name of this folder or NAME, into the project folder.

    The target includes the shipped one that fits machine and framework, and begins with its lock. The job runs at once:
    put your training in the place of its train.py. Files that are there already stay as they are.

    \b
    Examples:
      rlbox init --machine a800
      rlbox init mine --machine cpu
      rlbox init mine --machine 5090 --framework verl
    """
    from rlbox.cli.schema import schema_of
    from rlbox.scaffold.start import SCHEMAS, choose_target, first_files

    name = _checked(name or re.sub(r"[^a-z0-9]+", "-", app.project.folder.resolve().name.lower()).strip("-"))
    found, target = choose_target(*_asked(app, machine, framework))
    files = first_files(name, found, target, {kind: schema_of(kind) for kind in SCHEMAS})
    states = {path: _write(app, path, text) for path, text in files.items()}
    told = {"name": name, "machine": found.name, "includes": target, "files": states}
    lines = "\n".join(f"{isolated(path)}  {state}" for path, state in states.items())
    if app.dry_run:
        return app.planned(told, lines, "write these files")
    app.result(told, lines)
    app.say(f"next: rlbox lock {name} && rlbox build {name} && rlbox run {name}")
    return 0


def _checked(name: str) -> str:
    from rlbox.spec.kinds import NAME

    if not re.fullmatch(NAME, name):
        raise SpecError(
            f"{name!r} is no name of a target: small letters, digits and dashes, 63 of them at most",
            next_step="rlbox init NAME",
        )
    return name


def _asked(app: App, machine: str, framework: str) -> tuple[str, str]:
    """Return machine and framework as told, or as the user answers."""
    from rlbox.scaffold.start import load_machines

    if machine:
        return machine, framework
    machines = load_machines()
    if not (sys.stdin.isatty() and app.interactive):
        raise click.UsageError(f"name a machine: --machine {'|'.join(machines)}")
    app.say("\n".join(f"{one.name:<8} {one.title}: {', '.join(one.frameworks)}" for one in machines.values()))
    machine = click.prompt("machine", type=click.Choice([*machines]), err=True)
    return machine, framework or _framework(machines[machine])


def _framework(machine: MachineChoice) -> str:
    known = [*machine.frameworks]
    return known[0] if len(known) == 1 else click.prompt("framework", type=click.Choice(known), err=True)


def _write(app: App, path: str, text: str) -> str:
    file = app.project.folder / path
    if file.exists():
        same = file.is_file() and file.read_bytes() == text.encode()
        return "unchanged" if same else "there already, left as it is"
    if app.dry_run:
        return "to be written"
    write_own(app, path, text)
    return "written"
