"""`rlbox diagnose`: what broke first in logs, why, and what to do."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.offered import complete_run
from rlbox.cli.options import disk_options, shared

if TYPE_CHECKING:
    from rlbox.diagnose.act.sources import Source
    from rlbox.diagnose.verdict import Diagnosis

_PACKAGE = re.compile(r"(?:site|dist)-packages/(\w+)/")


@click.command()
@click.argument("logs", nargs=-1, metavar="LOG|DIR|RUN...", shell_complete=complete_run)
@click.option("--why", is_flag=True, help="Tell of the errors that are none, too, and why they are none.")
@click.option(
    "--signatures",
    "packs",
    multiple=True,
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder of signatures of another team, beside the shipped ones.",
)
@disk_options
@shared
def verb(app: App, logs: tuple[str, ...], why: bool, packs: tuple[Path, ...], target: str, data: str | None) -> int:
    """Say what broke first in logs, why, on which rank, and the smallest next step.

    LOG is a file of any program, also packed as .gz or .zst, or - for standard input; DIR a folder of logs of one job,
    Ray's session folder among them; RUN a run of rlbox. Several are read as one timeline. Nothing leaves this machine.
    Exit 1 when something was fatal.

    \b
    Examples:
      rlbox diagnose train.log
      rlbox diagnose node0.log node1.log --json
      rlbox diagnose smoke-20260101
    """
    from rlbox.diagnose.act.catalogue import load_catalogue
    from rlbox.diagnose.act.diagnose import diagnose_sources
    from rlbox.diagnose.told import report

    sources = _sources(app, logs, target, data)
    catalogue = load_catalogue(app.project.fix_files(), packs)
    found = _placed(diagnose_sources(sources, catalogue))
    text = "" if app.as_json else report(found, _excerpt(found, sources), why=why, tell=app.told)
    app.result(found.as_json(), text, verbatim=True)
    return int(found.fatal)


def _sources(app: App, logs: tuple[str, ...], target: str, data: str | None) -> list[Source]:
    """Return the logs that words mean: what is no run's name is a path; without words the last run's."""
    from rlbox.diagnose.act.sources import find_sources, run_sources
    from rlbox.run.data_disk import known_disk

    paths = [name for name in logs if name == "-" or "/" in name or "." in name or Path(name).exists()]
    runs = [name for name in logs if name not in paths] if logs else [None]
    ledger = known_disk(app, target, data) if runs else None
    return find_sources(paths) + [one for name in runs if ledger for one in run_sources(ledger.find(name))]


def _placed(found: Diagnosis) -> Diagnosis:
    """Return a diagnosis with what the inventory of messages knows of its root."""
    from rlbox.inventory.place import place

    root = found.root
    if root is None:
        return found
    packages = {part[1]: "" for frame in root.event.frames if (part := _PACKAGE.search(frame.file))}
    known = place(root.text, packages)
    return replace(found, placed=known.as_json() if known else None)


def _excerpt(found: Diagnosis, sources: list[Source]) -> str:
    from rlbox.diagnose.act.excerpt import excerpt_of

    return excerpt_of(found, sources)
