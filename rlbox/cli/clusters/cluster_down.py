"""`rlbox cluster down`: take a cluster away."""

from __future__ import annotations

import click

from rlbox.app import App
from rlbox.cli.clusters.cluster_options import cluster_options
from rlbox.cli.options import shared
from rlbox.cluster.wish import ClusterWish


@click.command()
@cluster_options
@click.option("--force", is_flag=True, help="Also under a job or a run that goes on there; it ends with the cluster.")
@shared
def down(app: App, wish: ClusterWish, force: bool) -> int:
    """End a cluster of yours and leave nothing of it: containers, keys, sessions and logs of Ray, rules.

    Under a job or a run it is refused, with exit code 8. Runs' directories and the image stay. What cannot be reached
    is named, and exit code 5 says so.

    \b
    Example:
      rlbox cluster down cluster-2node --nodes gpu005,gpu006
    """
    from rlbox.cluster.down import take_down

    done = take_down(app, wish, force=force)
    lines = [f"{node}: {', '.join(gone)}" for node, gone in done.gone.items() if gone]
    app.result({"cluster": done.name, "gone": dict(done.gone)}, "\n".join(lines))
    if not lines:
        app.say(f"nothing of cluster {done.name} was there")
    return 0
