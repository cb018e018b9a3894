"""`rlbox logs`: print the logs of a run, or follow them."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import click

from rlbox.app import App
from rlbox.cli.options import pass_app_with_shared_options, run_argument, target_and_data_options
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.logs.run_logs import LogFollower, list_logs_or_empty
from rlbox.record.run_store import RunStore
from rlbox.record.state import load_run_state
from rlbox.run.data_disk import clean_up_dead_runs, locate_run_store_or_run_remotely_and_exit
from rlbox.system.tail import FileFollower, find_last_lines_offset
from rlbox.terminal import IncrementalTerminalSanitizer

_PAUSE_S = 0.1
_STATE_POLL_S = 1.0


@click.command("logs")
@run_argument
@click.option("--follow", "-f", is_flag=True, help="Keep printing new lines until the run ends.")
@click.option(
    "--lines", "-n", type=click.IntRange(0), metavar="N", help="Number of last lines of each log [all; with -f, 10]."
)
@click.option("--stage", metavar="NAME", help="Only this stage.")
@click.option("--log", metavar="NAME", help="Only this log: stage, or the name of a service.")
@target_and_data_options
@pass_app_with_shared_options
def print_or_follow_run_logs(
    app: App,
    name: str | None,
    follow: bool,
    lines: int | None,
    stage: str | None,
    log: str | None,
    target: str,
    data: str | None,
) -> None:
    """Print the logs of RUN (the latest by default), stage after stage.

    If there are several logs, each is preceded by a line with its name; -q omits it.

    \b
    Examples:
      rlbox logs
      rlbox logs -f
    """
    run_store = locate_run_store_or_run_remotely_and_exit(app, target, data)
    run_dir = run_store.find_run_dir_or_latest(name)
    paths = list_logs_or_empty(run_dir, stage, log)
    if not paths and not (follow and _can_still_grow(run_store, run_dir, stage)):
        raise _make_missing_log_error(run_dir)
    if app.as_json:
        app.output({"run": run_dir.name, "logs": [str(path) for path in paths]}, "")
        return
    printer = _LogPrinter(app, run_dir, several=not (stage and log) if follow else len(paths) > 1)
    if follow:
        clean_up_dead_runs(app, run_store)
        follower = LogFollower(run_dir, stage, log, 10 if lines is None else lines)
        with contextlib.closing(follower):
            _follow(follower, printer, run_store, run_dir, stage)
    else:
        for path in paths:
            start = 0 if lines is None else find_last_lines_offset(path, lines)
            with contextlib.closing(FileFollower(path, start)) as tail:  # it passes over holes of the file
                while block := tail.read_next_block_or_empty():
                    printer.print(path, block)
    printer.close()


def _make_missing_log_error(run_dir: Path) -> SpecError:
    root = run_dir / "stages"
    logs_by_stage: dict[str, list[str]] = {}
    for path in list_logs_or_empty(run_dir, None, None):
        logs_by_stage.setdefault(path.relative_to(root).parts[0].partition("-")[2], []).append(path.stem)
    if not logs_by_stage:
        return SpecError(_("no log yet"), where=str(root), next_step="rlbox runs")
    there = "; ".join(f"--stage {stage} --log {', --log '.join(logs)}" for stage, logs in logs_by_stage.items())
    return SpecError(_("no such log"), where=str(root), next_step=_("choose one of: {known}").format(known=there))


class _LogPrinter:
    """Prints blocks of logs to standard output, under a line with the log's name whenever that changes."""

    def __init__(self, app: App, run_dir: Path, *, several: bool) -> None:
        self._app, self._run_dir, self._several = app, run_dir, several
        self._path: Path | None = None
        self._ended_line = True
        self._filters: dict[Path, IncrementalTerminalSanitizer] = {}

    def print(self, path: Path, block: bytes) -> None:
        if path != self._path:
            self._path = path
            head = f"==> {path.relative_to(self._run_dir)} <=="
            if self._several and self._app.verbosity >= 0:  # on stdout, so that a file of them can be told apart
                self._app.print_stdout(head if self._ended_line else f"\n{head}")
            else:
                self._app.print_status(head)
        self._ended_line = block.endswith(b"\n")
        sys.stdout.buffer.write(self._filters.setdefault(path, IncrementalTerminalSanitizer()).feed(block))
        sys.stdout.flush()

    def close(self) -> None:
        sys.stdout.buffer.write(b"".join(control_filter.close() for control_filter in self._filters.values()))


def _follow(follower: LogFollower, printer: _LogPrinter, run_store: RunStore, run_dir: Path, stage: str | None) -> None:
    """Print what the logs gain until nothing more can come: the run, or the one stage that was asked for, has ended."""
    next_poll, has_ended = 0.0, False
    while True:
        chunks = list(follower.iter_next_block_of_each_log())
        for path, data in chunks:
            printer.print(path, data)
        if chunks:
            continue
        if has_ended:
            return
        if time.monotonic() >= next_poll:
            next_poll = time.monotonic() + _STATE_POLL_S
            has_ended = not _can_still_grow(run_store, run_dir, stage)
        time.sleep(_PAUSE_S)


def _can_still_grow(run_store: RunStore, run_dir: Path, stage: str | None) -> bool:
    try:
        state = load_run_state(run_dir)
    except SpecError:  # it has not begun
        return run_store.is_running_or_starting(run_dir.name)
    going = [row for row in state.stages if row.state in ("waiting", "starting", "running") and row.name == stage]
    return (bool(going) or stage is None) and run_store.is_running_or_starting(run_dir.name)
