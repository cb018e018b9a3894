"""`rlbox cluster logs`: what Ray wrote on all nodes, as one log."""

from __future__ import annotations

import click

from rlbox.app import App
from rlbox.cli.clusters.cluster_options import cluster_options
from rlbox.cli.options import shared
from rlbox.cluster.wish import ClusterWish


@click.command()
@cluster_options
@click.option("--follow", "-f", "grow", is_flag=True, help="Go on showing what comes, until Ctrl-C.")
@click.option("--lines", "-n", type=click.IntRange(0), default=50, show_default=True, help="Last lines of each log.")
@click.option("--node", default="", metavar="NODE", help="Of this node alone.")
@click.option("--log", "names", multiple=True, metavar="PATTERN", help="Logs by name: raylet.*, worker-*.err.")
@click.option("--job", default="", metavar="JOB", help="What the driver of a job writes; with -f until its end.")
@shared
def logs(app: App, wish: ClusterWish, grow: bool, lines: int, node: str, names: tuple[str, ...], job: str) -> int:
    """Show Ray's logs of all nodes in the order of time, differences of their clocks taken off.

    \b
    Example:
      rlbox cluster logs cluster-2node --nodes gpu005,gpu006 --log 'raylet.*'
    """
    from rlbox.cluster.act.logs import ALL, LogWish, read_logs
    from rlbox.cluster.act.submit import follow_job

    show = (lambda text: None) if app.as_json else app.show
    if job and grow:
        end = follow_job(app, wish, job, show)
        app.say(f"job {job} {end.state.status}")
        return end.state.code
    chosen = (f"job-driver-{job}.log",) if job else names or ALL
    count = read_logs(app, wish, LogWish(node=node, names=chosen, lines=lines, grow=grow), show)
    app.result({"lines": count}, "")
    if not count:
        app.say(f"no log of that name: {', '.join(chosen)}")
    return 0
