"""`rlbox cluster doctor`: what is wrong with nodes; `dashboard`: Ray's own page, here."""

from __future__ import annotations

import click

from rlbox.app import App
from rlbox.cli.clusters.cluster_options import cluster_options
from rlbox.cli.options import shared
from rlbox.cluster.wish import ClusterWish


@click.command()
@cluster_options
@click.option("--path", "paths", multiple=True, metavar="PATH", help="What all nodes need, and the same copy of it.")
@shared
def doctor(app: App, wish: ClusterWish, paths: tuple[str, ...]) -> int:
    """Ask every node everything that `up` asks, and say all that is wrong; of a cluster that stands, too.

    Nothing is changed. Exit code 1 where something is wrong.

    \b
    Example:
      rlbox cluster doctor cluster-2node --nodes gpu005,gpu006
    """
    from rlbox.cluster.act.examine import examine
    from rlbox.cluster.preflight import problems_text
    from rlbox.errors import WorkFailed

    found = examine(app, wish, paths)
    status = found.status.as_json() if found.status else None
    data = {"findings": [one.as_json() for one in found.findings], "nodes": found.nodes, "status": status}
    app.result(data, problems_text(found.findings))
    errors = sum(one.level == "error" for one in found.findings)
    said = "nothing is wrong" if not errors else "1 problem" if errors == 1 else f"{errors} problems"
    app.say(f"cluster doctor: {found.checks} questions to {found.nodes} nodes: {said}")
    return WorkFailed.exit_code if found.failed else 0


@click.command()
@cluster_options
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port here; 0: a free one.")
@shared
def dashboard(app: App, wish: ClusterWish, port: int) -> int:
    """Lead Ray's dashboard to this machine's loopback, until Ctrl-C.

    It listens on the head's loopback alone. Where Ray has tokens it asks for the cluster's, which is in the file
    auth_token of the cluster's folder on the head's data disk.

    \b
    Example:
      rlbox cluster dashboard cluster-2node --nodes gpu005,gpu006
    """
    from rlbox.cluster.act.dashboard import lead_dashboard

    lead_dashboard(app, wish, port, lambda url: app.result({"url": url}, url))
    return 0
