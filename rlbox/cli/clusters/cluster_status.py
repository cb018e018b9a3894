"""`rlbox cluster status`: how a cluster is, asked of its nodes."""

from __future__ import annotations

import click

from rlbox.app import App
from rlbox.cli.clusters.cluster_options import cluster_options
from rlbox.cli.options import shared
from rlbox.cluster.wish import ClusterWish


@click.command()
@cluster_options
@shared
def status(app: App, wish: ClusterWish) -> int:
    """Say how a cluster is: nodes, GPUs and how many are idle, object store, disks.

    Any machine that reaches the nodes can ask. Exit code 5 where a node is not as it should be.

    \b
    Example:
      rlbox cluster status cluster-2node --nodes gpu005,gpu006
    """
    from rlbox.cluster.status import probe_cluster
    from rlbox.errors import NodeError

    found = probe_cluster(app, wish)
    app.result(found.as_json(), found.text())
    if any(not node.healthy for node in found.nodes):
        app.say(f"next: rlbox cluster up {wish.words} brings back what died")
    for one in found.listens:
        app.say(f"next: {one.where}: {one.remedy}")
    return 0 if found.healthy else NodeError.exit_code
