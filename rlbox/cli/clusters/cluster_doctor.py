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
@click.option("--prove", is_flag=True, help="Give the nodes of a cluster that stands work whose result is known.")
@shared
def doctor(app: App, wish: ClusterWish, paths: tuple[str, ...], prove: bool) -> int:
    """Ask every node everything that `up` asks, and say all that is wrong; of a cluster that stands, too.

    Nothing is changed. With --prove every device multiplies matrices, every node all-reduces by itself and with others,
    beside whatever runs there. Exit code 1 where something is wrong.

    \b
    Examples:
      rlbox cluster doctor cluster-2node --nodes gpu005,gpu006
      rlbox cluster doctor cluster-2node --nodes gpu005,gpu006 --prove
    """
    from rlbox.cluster.examine import examine
    from rlbox.cluster.preflight import problems_text
    from rlbox.errors import WorkFailed

    found = examine(app, wish, paths, work=prove)
    status = found.status.as_json() if found.status else None
    data = {"findings": [one.as_json() for one in found.findings], "nodes": found.nodes, "status": status}
    data |= {"proof": found.proof.as_json() if found.proof else None}
    figures = found.proof.text() if found.proof else ""
    app.result(data, "\n".join(filter(None, (figures, problems_text(found.findings)))))
    errors = sum(one.level == "error" for one in found.findings)
    said = "nothing is wrong" if not errors else "1 problem" if errors == 1 else f"{errors} problems"
    app.say(f"cluster doctor: {found.checks} questions to {found.nodes} nodes: {said}")
    return WorkFailed.exit_code if found.failed else 0
