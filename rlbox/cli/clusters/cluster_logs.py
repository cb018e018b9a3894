"""`rlbox cluster logs`: what the nodes of a cluster wrote, in one order."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from rlbox.app import App
from rlbox.cli.clusters.cluster_options import cluster_options
from rlbox.cli.options import shared
from rlbox.cluster.wish import ClusterWish


@click.command()
@cluster_options
@click.option("--job", default="", metavar="JOB", help="Only what a job's driver and workers wrote.")
@click.option("--follow", "-f", is_flag=True, help="Keep printing new lines until Ctrl-C.")
@click.option("--lines", "-n", type=click.IntRange(0), metavar="N", help="Number of last lines [all; with -f, 10].")
@shared
def logs(app: App, wish: ClusterWish, job: str, follow: bool, lines: int | None) -> None:
    """Print the logs of all nodes, merged by time; how far a node's clock is off is taken out.

    Each line has its time (UTC), node and log before it. A line without a time of its own goes with the one before it.

    \b
    Example:
      rlbox cluster logs cluster-2node --nodes gpu005,gpu006 --job job-1a2b3c4d -f
    """
    from rlbox.cluster.merge import LogLine
    from rlbox.cluster.work.logs import LogsWish, read_logs

    if follow and app.as_json:
        raise click.UsageError("--follow does not go with --json.")
    found: list[dict[str, Any]] = []

    def show(line: LogLine) -> None:
        if app.as_json:
            found.append(dataclasses.asdict(line))
        else:
            app.show(line.shown())

    number = 10 if follow and lines is None else lines
    read_logs(app, LogsWish(**dataclasses.asdict(wish), job=job, lines=number, follow=follow), show)
    if app.as_json:
        app.result({"lines": found}, "")
