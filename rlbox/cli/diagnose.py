"""`rlbox diagnose`: what broke first in logs, why, and what to do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlbox.app import App
from rlbox.cli.completers import complete_run
from rlbox.cli.options import pass_app_with_shared_options, target_and_data_options
from rlbox.errors import WorkFailed
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.diagnose.cause import Cause
    from rlbox.diagnose.diagnosis import Diagnosis
    from rlbox.diagnose.signatures import SignatureSet
    from rlbox.diagnose.sources import LogSource

QUIET_S = 30.0
"""Seconds without a byte after which a log that has an ending is at its end."""
_PAUSE_S = 0.2
_ASKED_S = 300.0


@click.command()
@click.argument("logs", nargs=-1, metavar="LOG|DIR|RUN...", shell_complete=complete_run)
@click.option("--why", is_flag=True, help="Also list the errors that turned out harmless, and why.")
@click.option(
    "--signatures",
    "packs",
    multiple=True,
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with your own log patterns, in addition to the shipped ones.",
)
@click.option("--follow", "-f", "grow", is_flag=True, help="Keep reading new lines until the logs say how it ended.")
@click.option(
    "--ask", metavar="CMD", help="Give a masked extract to a command's standard input; print the answer as a guess."
)
@target_and_data_options
@pass_app_with_shared_options
def diagnose(
    app: App,
    logs: tuple[str, ...],
    why: bool,
    packs: tuple[Path, ...],
    grow: bool,
    ask: str | None,
    target: str,
    data: str | None,
) -> int:
    """Find the first failure in logs: its cause, its rank and the next step.

    LOG is a file of any program, also packed as .gz or .zst, or - for standard input; DIR a folder of logs of one job,
    Ray's session folder among them; RUN a run of rlbox. Several are read as one timeline. Nothing leaves this machine
    but what --ask is given. Exit 1 when something was fatal.

    \b
    Examples:
      rlbox diagnose train.log
      rlbox diagnose node0.log node1.log --json
      rlbox diagnose train.log --follow
      rlbox diagnose train.log --ask 'llm -s "be brief"'
      rlbox diagnose smoke-20260101
    """
    from rlbox.diagnose.diagnose import diagnose_sources
    from rlbox.diagnose.report import format_report
    from rlbox.diagnose.signatures import load_signatures

    catalogue = load_signatures(app.project.fix_files(), packs)
    sources, may_grow, runs = _sources(app, logs, target, data)
    found = _follow(app, sources, catalogue, may_grow) if grow else diagnose_sources(sources, catalogue)
    excerpt = _excerpt(found, sources)
    extra: dict[str, Any] = {"guess": _guess(app, ask, found, excerpt)} if ask and found.is_fatal else {}
    text = "" if app.as_json else format_report(found, excerpt, include_benign=why)
    if extra:
        text += _("\n\nguess of that command, and no part of the verdict:\n{answer}").format(answer=extra["guess"])
    cause = None if found.is_fatal else _recorded_cause(runs)
    if cause:  # its log is fine; a gate, a limit or a service was not
        what = _("the run failed all the same: {what}").format(what=cause.what)
        text += f"\n{WorkFailed(what, where=cause.where, next_step=cause.next_step)}"
        extra["recorded_cause"] = {"what": cause.what, "where": cause.where, "next": cause.next_step}
    app.result({**found.as_json(), **extra}, text)
    return int(found.is_fatal or cause is not None)


def _guess(app: App, command: str, found: Diagnosis, excerpt: str) -> str:
    """Return what a command of the user's answers to a masked extract; empty, and said, where it fails."""
    from rlbox.diagnose.report import format_redacted_report
    from rlbox.system.command import run_command
    from rlbox.values import Command

    asked = format_redacted_report(found, excerpt, os.environ)
    try:
        outcome = run_command(Command(argv=("sh", "-c", command), timeout_s=_ASKED_S), asked)
    except WorkFailed as error:
        app.print_status(f"warning: --ask has no answer: {error}")
        return ""
    if not outcome.ok:
        app.print_status(f"warning: --ask has no answer: the command ended with exit code {outcome.exit_code}")
    return outcome.stdout.strip()


def _recorded_cause(runs: list[Path]) -> Cause | None:
    """Return why the first failed run of some ended, as its supervisor recorded it."""
    from rlbox.record.state import find_readable_run_state, find_run_cause

    states = [state for run in runs if (state := find_readable_run_state(run))]
    return next((cause for state in states if (cause := find_run_cause(state))), None)


def _sources(
    app: App, logs: tuple[str, ...], target: str, data: str | None
) -> tuple[list[LogSource], Callable[[], bool], list[Path]]:
    """Return the logs that words mean, whether they may still grow, and the directories of the runs among them.

    What is no run's name is a path; without words they are the last run's.
    """
    from rlbox.diagnose.sources import find_run_sources, find_sources

    paths = [name for name in logs if name == "-" or "/" in name or "." in name or Path(name).exists()]
    names = [name for name in logs if name not in paths] if logs else [None]
    found = find_sources(paths)
    if not names:
        return found, lambda: True, []
    from rlbox.run.data_disk import (
        open_existing_store_or_exec_remotely,  # 0.2 s of modules, which who names a file need not wait for
    )

    run_store = open_existing_store_or_exec_remotely(app, target, data)
    runs = [run_store.find_run(name) for name in names]
    found += [one for run in runs for one in find_run_sources(run)]
    return found, lambda: bool(paths) or any(run_store.is_running(run.name) for run in runs), runs


def _follow(app: App, sources: list[LogSource], catalogue: SignatureSet, may_grow: Callable[[], bool]) -> Diagnosis:
    """Read logs as they grow, and tell what broke first whenever that changes, until it has ended and nothing comes."""
    from rlbox.diagnose.diagnose import GrowingLogs
    from rlbox.diagnose.report import format_report
    from rlbox.diagnose.sources import has_compressed_suffix

    if any(
        source.path_unless_stdin is None or source.archive_member or has_compressed_suffix(source.path_unless_stdin)
        for source in sources
    ):
        raise click.UsageError(
            _("--follow is about files that grow: standard input and packed logs end by themselves.")
        )
    logs, told, quiet_s = GrowingLogs(sources, catalogue), "", 0.0
    while True:
        growing = may_grow()  # before what is read last
        quiet_s = 0.0 if logs.read_new_bytes() else quiet_s + _PAUSE_S
        found = logs.diagnosis
        first = format_report(replace(found, chain=())) if found.is_fatal else ""
        if first != told and not app.as_json:
            app.print_stdout(first or _("nothing fatal after all: the work continued"))
        told = first
        if (quiet_s >= QUIET_S and found.has_ending) or (quiet_s and not growing):
            return found
        time.sleep(_PAUSE_S)


def _excerpt(found: Diagnosis, sources: list[LogSource]) -> str:
    from rlbox.diagnose.first_fatal import read_excerpt

    return read_excerpt(found, sources)
