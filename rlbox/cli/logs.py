"""`rlbox logs` and `rlbox watch`: follow a run."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.completers import complete_run
from rlbox.cli.options import (
    OpenMode,
    open_auto_yes_no_option,
    open_browser,
    pass_app_with_shared_options,
    target_and_data_options,
)
from rlbox.errors import NodeError, SpecError
from rlbox.i18n import _
from rlbox.run.data_disk import load_run_masks, open_existing_store_or_exec_remotely, reconcile_runs
from rlbox.terminal import ControlFilter

if TYPE_CHECKING:
    from rlbox.record.run_store import RunStore


_PAUSE_S = 0.1
_ASK_S = 1.0


@click.command()
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.option("--follow", "-f", "grow", is_flag=True, help="Keep printing new lines until the run ends.")
@click.option(
    "--lines", "-n", type=click.IntRange(0), metavar="N", help="Number of last lines of each log [all; with -f, 10]."
)
@click.option("--stage", metavar="NAME", help="Only this stage.")
@click.option(
    "--log",
    metavar="NAME",
    help="Only this log: stage, or the name of a service.",
)
@click.option(
    "--attempt", type=click.IntRange(1), metavar="N", help="Logs of an earlier attempt, of stages that were run again."
)
@target_and_data_options
@pass_app_with_shared_options
def logs(
    app: App,
    name: str | None,
    grow: bool,
    lines: int | None,
    stage: str | None,
    log: str | None,
    attempt: int | None,
    target: str,
    data: str | None,
) -> None:
    """Print the logs of RUN (the latest by default), stage after stage.

    If there are several logs, each is preceded by a line with its name; -q omits it.

    \b
    Examples:
      rlbox logs
      rlbox logs -f
      rlbox logs smoke-20260101 --stage rollout-only --log vllm
    """
    from rlbox.logs.run_logs import list_logs

    if grow and attempt:
        raise click.UsageError(_("--attempt is about stages that have ended: --follow does not go with it."))
    run_store = open_existing_store_or_exec_remotely(app, target, data)
    folder = run_store.find_run(name)
    paths = list_logs(folder, stage, log, attempt)
    if not paths and not (grow and _may_come(run_store, folder, stage)):
        raise _no_log(folder, attempt)
    if app.as_json:
        app.result({"run": folder.name, "logs": [str(path) for path in paths]}, "")
    elif grow:
        _follow(app, run_store, folder, stage, log, 10 if lines is None else lines)
    else:
        _print(app, folder, paths, lines)


def _may_come(run_store: RunStore, run_dir: Path, stage: str | None) -> bool:
    """Whether a run that goes on may yet write a log, in that stage or in any."""
    if not run_store.is_running(run_dir.name):
        return False
    return stage is None or any(row.name == stage for row in run_store.load_plan_preferring_host_record(run_dir).stages)


def _no_log(run_dir: Path, attempt: int | None) -> SpecError:
    """Return the error that says which logs there are."""
    from rlbox.logs.run_logs import list_logs

    root = run_dir / "stages"
    known: dict[str, list[str]] = {}
    for path in list_logs(run_dir, None, None, attempt):
        known.setdefault(path.relative_to(root).parts[0].partition("-")[2], []).append(path.stem)
    there = "; ".join(f"--stage {stage} --log {', --log '.join(logs)}" for stage, logs in known.items())
    if not there:
        what = (
            _("no log of attempt {attempt}: the latest is kept without a number").format(attempt=attempt)
            if attempt
            else _("no log yet")
        )
        return SpecError(what, where=str(root), next_step=f"rlbox logs {run_dir.name}" if attempt else "rlbox runs")
    return SpecError(_("no such log"), where=str(root), next_step=_("there is {there}").format(there=there))


def _print(app: App, run_dir: Path, paths: Sequence[Path], lines: int | None) -> None:
    """Print logs, or the last lines of each."""
    from rlbox.system.tail import FileFollower, find_last_lines_offset

    ended = True
    for path in paths:
        _head(app, run_dir, path, several=len(paths) > 1, ended=ended)
        stream = ControlFilter()
        start = 0 if lines is None else find_last_lines_offset(path, lines)
        with contextlib.closing(FileFollower(path, start)) as tail:  # it passes over holes of the file
            while block := tail.read():
                ended = block.endswith(b"\n")
                sys.stdout.buffer.write(stream.feed(block))
        sys.stdout.buffer.write(stream.close())
        sys.stdout.flush()


def _head(app: App, run_dir: Path, path: Path, *, several: bool, ended: bool) -> None:
    """Name the log whose lines follow: where they go if there are several, so that a file of them can be told apart.

    `ended` says that the line before has its end.
    """
    head = f"==> {path.relative_to(run_dir)} <=="
    if several and app.verbosity >= 0:
        app.print_stdout(head if ended else f"\n{head}")
    else:
        app.print_status(head)


def _follow(app: App, run_store: RunStore, run_dir: Path, stage: str | None, log: str | None, lines: int) -> None:
    """Print what the logs gain until nothing more can come: the run, or the one stage that was asked for, has ended."""
    from rlbox.logs.run_logs import LogFollower

    reconcile_runs(app, run_store)
    follower, shown, asked, over = LogFollower(run_dir, stage, log, lines), None, 0.0, False
    ended = True
    streams: dict[Path, ControlFilter] = {}
    with contextlib.closing(follower):
        while True:
            quiet = True
            for path, data in follower.read():
                quiet = False
                if path != shown:
                    _head(app, run_dir, path, several=not (stage and log), ended=ended)
                    shown = path
                ended = data.endswith(b"\n")
                sys.stdout.buffer.write(streams.setdefault(path, ControlFilter()).feed(data))
                sys.stdout.flush()
            if not quiet:
                continue
            if over:
                sys.stdout.buffer.write(b"".join(stream.close() for stream in streams.values()))
                return
            if time.monotonic() - asked > _ASK_S:
                asked = time.monotonic()
                over = not _more_may_come(run_store, run_dir, stage)
            time.sleep(_PAUSE_S)


def _more_may_come(run_store: RunStore, run_dir: Path, stage: str | None) -> bool:
    from rlbox.record.state import load_run_state

    try:
        state = load_run_state(run_dir)
    except SpecError:
        return run_store.is_running(run_dir.name)
    waited = [s for s in state.stages if s.state in ("waiting", "starting", "running") and stage in (None, s.name)]
    return (bool(waited) or stage is None) and run_store.is_running(run_dir.name)


POINTS = 400


@click.command()
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="PORT", help="Port on 127.0.0.1 [a free one]."
)
@open_auto_yes_no_option
@target_and_data_options
@pass_app_with_shared_options
def watch(app: App, name: str | None, port: int, opened: OpenMode, target: str, data: str | None) -> int:
    """Show RUN (by default the latest) as a page that follows it, on this machine alone; Ctrl-C ends the page.

    It shows the same content as the report, updates while the run is in progress, and never changes the run.

    \b
    Examples:
      rlbox watch
      rlbox watch smoke-20260101 --port 8300 --open no
    """
    from rlbox.amounts import utc_now
    from rlbox.report.html import render_report
    from rlbox.report.live import LivePage
    from rlbox.report.read import load_run_record

    folder = open_existing_store_or_exec_remotely(app, target, data).find_run(name)

    def page() -> str:
        record = load_run_record(folder, load_run_masks(app, folder), max_points_per_series=POINTS)
        return render_report(record, made_at=utc_now(), live=True)

    try:
        server = LivePage(folder, page, port)
    except OSError as error:
        raise NodeError(
            _("cannot listen on the port: {strerror}").format(strerror=error.strerror),
            where=str(port),
            next_step=_("name another with --port"),
        ) from error
    address = f"http://127.0.0.1:{server.port}/"
    try:
        app.result({"run": folder.name, "address": address}, address)
        _tell(app, folder.name, server.port)
        open_browser(app, opened, address)
        server.serve_forever()
    except KeyboardInterrupt:
        app.print_status(f"stopped showing run {folder.name}")
    finally:
        server.server_close()
    return 0


def _tell(app: App, run: str, port: int) -> None:
    app.print_status(f"run {run} is shown there until Ctrl-C")
    if os.environ.get("SSH_CONNECTION"):
        app.print_status(f"from your own machine: ssh -N -L {port}:127.0.0.1:{port} NAME, then the same address")
