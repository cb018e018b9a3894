"""`rlbox watch`: a run as a live page in a browser."""

from __future__ import annotations

import os

import click

from rlbox.app import App
from rlbox.cli.offered import complete_run
from rlbox.cli.options import disk_options, open_browser, open_option, shared
from rlbox.errors import NodeError
from rlbox.run.data_disk import known_disk, run_masks

POINTS = 400


@click.command()
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="PORT", help="Port on 127.0.0.1 [a free one]."
)
@open_option
@disk_options
@shared
def verb(app: App, name: str | None, port: int, opened: str, target: str, data: str | None) -> int:
    """Show RUN (by default the latest) as a page that follows it, on this machine alone; Ctrl-C ends the page.

    It shows what the report shows, updates itself while the run is in progress, and never changes the run.

    \b
    Examples:
      rlbox watch
      rlbox watch smoke-20260101 --port 8300 --open no
    """
    from rlbox.report.html import render_report
    from rlbox.report.live import LivePage
    from rlbox.report.read import load_run_record
    from rlbox.system.clock import utc_now

    folder = known_disk(app, target, data).find(name)

    def page() -> str:
        record = load_run_record(folder, run_masks(app, folder), points=POINTS)
        return render_report(record, made_at=utc_now(), live=True)

    try:
        server = LivePage(folder, page, port)
    except OSError as error:
        raise NodeError(
            f"cannot listen on the port: {error.strerror}", where=str(port), next_step="name another with --port"
        ) from error
    address = f"http://127.0.0.1:{server.port}/"
    try:
        app.result({"run": folder.name, "address": address}, address)
        _tell(app, folder.name, server.port)
        open_browser(app, opened, address)
        server.serve_forever()
    except KeyboardInterrupt:
        app.say(f"stopped showing run {folder.name}")
    finally:
        server.server_close()
    return 0


def _tell(app: App, run: str, port: int) -> None:
    app.say(f"run {run} is shown there until Ctrl-C")
    if os.environ.get("SSH_CONNECTION"):
        app.say(f"from your own machine: ssh -N -L {port}:127.0.0.1:{port} NAME, then the same address")
