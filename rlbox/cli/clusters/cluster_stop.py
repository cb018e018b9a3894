"""`rlbox cluster stop`: end a job of a cluster."""

from __future__ import annotations

import click

from rlbox.app import App
from rlbox.cli.clusters.cluster_options import cluster_options
from rlbox.cli.options import shared
from rlbox.cluster.wish import ClusterWish


@click.command()
@cluster_options
@click.argument("job", metavar="JOB")
@shared
def stop(app: App, wish: ClusterWish, job: str) -> int:
    """End JOB; the cluster stays. Of a job that has ended nothing is changed, and that is no error.

    \b
    Example:
      rlbox cluster stop cluster-2node --nodes gpu005,gpu006 job-1a2b3c4d
    """
    from rlbox.cluster.work.jobs import stop_job

    ended, stopped = stop_job(app, wish, job)
    if not stopped:
        app.say(f"job {ended.id} has already ended: there is nothing to stop")
    app.result({**ended.as_json(), "stopped": stopped}, f"{ended.id} {ended.status}")
    return 0
