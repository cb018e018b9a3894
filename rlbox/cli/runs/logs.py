"""`rlbox logs`: what the stages and services of a run wrote, and write."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.options import disk_options, shared
from rlbox.errors import NodeError, SpecError
from rlbox.printable import PrintableStream
from rlbox.run.data_disk import bring_up_to_date, disk_of

if TYPE_CHECKING:
    from rlbox.files.act.tail import Tail
    from rlbox.record.act.ledger import Ledger

_PAUSE_S = 0.1
_ASK_S = 1.0


@click.command()
@click.argument("name", metavar="[RUN]", required=False)
@click.option("--follow", "-f", "grow", is_flag=True, help="Go on printing what comes, until the run ends.")
@click.option("--lines", "-n", default=10, metavar="N", show_default=True, help="With -f: last lines to begin with.")
@click.option("--stage", metavar="NAME", help="Only this stage.")
@click.option("--log", metavar="NAME", help="Only this log: stage, or the name of a service.")
@click.option("--attempt", type=int, metavar="N", help="An earlier attempt of stages that ran again.")
@disk_options
@shared
def verb(
    app: App,
    name: str | None,
    grow: bool,
    lines: int,
    stage: str | None,
    log: str | None,
    attempt: int | None,
    target: str,
    data: str | None,
) -> None:
    """Print the logs of RUN (the latest by default), stage after stage.

    \b
    Examples:
      rlbox logs
      rlbox logs -f
      rlbox logs smoke-20260101 --stage rollout-only --log vllm
    """
    from rlbox.files.act.tail import Tail
    from rlbox.logs.act.follow import find_logs

    ledger = disk_of(app, target, data)
    folder = ledger.find(name)
    if grow and not app.as_json:
        _follow(app, ledger, folder, stage, log, max(0, lines))
        return
    paths = find_logs(folder, stage, log, attempt)
    if not paths:
        raise SpecError("no such log", where=str(folder / "stages"), next_step=f"rlbox logs {folder.name}")
    if app.as_json:
        app.result({"run": folder.name, "logs": [str(path) for path in paths]}, "")
        return
    problems: list[NodeError] = []
    for path in paths:
        app.say(f"==> {path.relative_to(folder)} <==")
        tail, stream = Tail(path), PrintableStream()  # a tail passes over what nobody wrote
        with contextlib.closing(tail):
            while block := _next_block(tail, path, problems):
                sys.stdout.buffer.write(stream.feed(block))
        sys.stdout.buffer.write(stream.close())
        sys.stdout.flush()
    if problems:
        raise problems[0]


def _next_block(tail: Tail, path: Path, problems: list[NodeError]) -> bytes:
    """Return the next bytes of a log; of one that cannot be read nothing, and the problem is kept."""
    try:
        return tail.read()
    except OSError as error:
        problems.append(NodeError(f"the log cannot be read: {error.strerror}", where=str(path)))
        return b""


def _follow(app: App, ledger: Ledger, run_dir: Path, stage: str | None, log: str | None, lines: int) -> None:
    """Print what the logs gain until nothing more can come: the run, or the one stage that was asked for, has ended."""
    from rlbox.logs.act.follow import LogFollower
    from rlbox.report.act.run_view import status_view

    bring_up_to_date(app, ledger)
    follower, shown, asked, over = LogFollower(run_dir, stage, log, lines), None, 0.0, False
    ended = True
    streams: dict[Path, PrintableStream] = {}
    with (
        contextlib.closing(follower),
        status_view(run_dir, live=app.interactive and sys.stdout.isatty(), quiet=app.verbosity < 0) as status,
    ):
        while True:
            quiet = True
            for path, data in follower.read():
                quiet, ended = False, data.endswith(b"\n")
                status.hide()
                if path != shown:
                    app.say(f"==> {path.relative_to(run_dir)} <==")
                    shown = path
                sys.stdout.buffer.write(streams.setdefault(path, PrintableStream()).feed(data))
                sys.stdout.flush()
            if not quiet:
                continue
            if over:
                sys.stdout.buffer.write(b"".join(stream.close() for stream in streams.values()))
                return
            status.show(after_line=ended)
            if time.monotonic() - asked > _ASK_S:
                asked = time.monotonic()
                over = not _more_may_come(ledger, run_dir, stage)
            time.sleep(_PAUSE_S)


def _more_may_come(ledger: Ledger, run_dir: Path, stage: str | None) -> bool:
    from rlbox.record.act.state import load_run_state

    try:
        state = load_run_state(run_dir)
    except SpecError:
        return ledger.goes_on(run_dir.name)
    waited = [s for s in state.stages if s.state in ("waiting", "starting", "running") and stage in (None, s.name)]
    return (bool(waited) or stage is None) and ledger.goes_on(run_dir.name)
