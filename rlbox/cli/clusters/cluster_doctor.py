"""`rlbox cluster doctor`: what is wrong with nodes, before a cluster and under one."""

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
