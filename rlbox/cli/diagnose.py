"""`rlbox diagnose`: what broke first in logs, why, and what to do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from rlbox.app import App
from rlbox.cli.options import complete_run, pass_app_with_shared_options, target_and_data_options
from rlbox.config.toml_files import format_spec_path
from rlbox.diagnose.diagnosis import Diagnosis, diagnose_sources
from rlbox.diagnose.first_fatal import read_root_excerpt_or_empty
from rlbox.diagnose.report import format_redacted_help_request, format_report
from rlbox.diagnose.signatures import load_signatures
from rlbox.diagnose.sources import LogSource, find_log_sources, require_run_log_sources
from rlbox.errors import SpecError, WorkFailed
from rlbox.i18n import _, join
from rlbox.record.state import find_run_cause, load_run_state_or_none
from rlbox.run.data_disk import locate_run_store_or_run_remotely_and_exit
from rlbox.system.command import run_command
from rlbox.values import Command

_ASK_TIMEOUT_S = 300.0


@click.command("diagnose")
@click.argument("logs", nargs=-1, metavar="LOG|DIR|RUN...", shell_complete=complete_run)
@click.option("--why", "include_benign", is_flag=True, help="Also list the errors that turned out harmless, and why.")
@click.option(
    "--signatures",
    "packs",
    multiple=True,
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with your own log patterns, in addition to the shipped ones.",
)
@click.option(
    "--ask",
    "ask_command",
    metavar="CMD",
    help="Give a masked extract to a command's standard input; print the answer as a guess.",
)
@target_and_data_options
@pass_app_with_shared_options
def diagnose_logs_and_print_first_failure(
    app: App,
    logs: tuple[str, ...],
    include_benign: bool,
    packs: tuple[Path, ...],
    ask_command: str | None,
    target: str,
    data: str | None,
) -> int:
    """Find the first failure in logs: its cause, its rank and the next step.

    LOG is a file of any program, also packed (gzip, zstd, xz, bzip2), or - for standard input; DIR a folder of logs of
    one job, Ray's session folder among them; RUN a run of rlbox. Several are read as one timeline. Nothing leaves this
    machine but what --ask is given. Exit 1 when something was fatal, 2 when a log is empty, damaged or binary.

    \b
    Examples:
      rlbox diagnose train.log
      rlbox diagnose train.log --ask 'llm -s "be brief"'
    """
    try:
        catalogue = load_signatures(app.project.own_pack_and_shipped_fix_files(), packs)
    except SpecError as error:
        error.where = error.where and format_spec_path(Path(error.where), app.project)
        raise
    sources, runs = _find_sources(app, logs, target, data)
    diagnosis = diagnose_sources(sources, catalogue)
    excerpt = read_root_excerpt_or_empty(diagnosis, sources)
    extra: dict[str, Any] = {}
    text = "" if app.as_json else format_report(diagnosis, excerpt, include_benign=include_benign)
    if ask_command and diagnosis.has_fatal_failure:
        extra["guess"] = _ask_command(app, ask_command, diagnosis, excerpt)
        text += _("\n\nguess of that command, and no part of the verdict:\n{answer}").format(answer=extra["guess"])
    states = [] if diagnosis.has_fatal_failure else [state for run in runs if (state := load_run_state_or_none(run))]
    cause = next((cause for state in states if (cause := find_run_cause(state))), None)
    if cause:  # its log is fine; a gate, a limit or a service was not
        what = _("the run failed all the same: {what}").format(what=cause.what)
        text = join("\n", (text, WorkFailed(what, where=cause.where, next_step=cause.next_step)))
        extra["recorded_cause"] = {"what": cause.what, "where": cause.where, "next": cause.next_step}
    app.output({**diagnosis.as_json(), **extra}, text)
    if diagnosis.has_fatal_failure or cause:
        return WorkFailed.exit_code
    return SpecError.exit_code if diagnosis.damaged_files else 0


def _ask_command(app: App, command: str, diagnosis: Diagnosis, excerpt: str) -> str:
    """Return what a command of the user's answers to a masked extract; empty, and said, where it fails."""
    question = format_redacted_help_request(diagnosis, excerpt, os.environ)
    try:
        outcome = run_command(Command(argv=("sh", "-c", command), timeout_s=_ASK_TIMEOUT_S), question)
    except WorkFailed as error:
        app.print_status(_("warning: --ask has no answer: {error}").format(error=error))
        return ""
    if not outcome.ok:
        app.print_status(
            _("warning: --ask has no answer: the command ended with exit code {exit_code}").format(
                exit_code=outcome.exit_code
            )
        )
    return outcome.stdout.strip()


def _find_sources(app: App, logs: tuple[str, ...], target: str, data: str | None) -> tuple[list[LogSource], list[Path]]:
    """Return the logs that words mean, and the directories of the runs among them.

    What is no run's name is a path; without words they are the last run's.
    """
    paths = [name for name in logs if name == "-" or "/" in name or "." in name or Path(name).exists()]
    names = [name for name in logs if name not in paths] if logs else [None]
    sources = find_log_sources(paths)
    if not names:
        return sources, []
    run_store = locate_run_store_or_run_remotely_and_exit(app, target, data)
    runs = [run_store.find_run_dir_or_latest(name) for name in names]
    return sources + [source for run in runs for source in require_run_log_sources(run)], runs
