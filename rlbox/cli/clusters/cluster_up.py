"""`rlbox cluster up`: a healthy, closed cluster, or what is wrong on which node."""

from __future__ import annotations

import dataclasses

import click

from rlbox.app import App
from rlbox.cli.clusters.cluster_options import cluster_options
from rlbox.cli.options import Amount, dry_run, shared
from rlbox.cluster.wish import ClusterWish


@click.command()
@cluster_options
@click.option("--port", type=click.IntRange(0, 65000), default=0, metavar="N", help="First of 20 ports; 0: that fit.")
@click.option("--open", "opened", is_flag=True, help="Start though nothing keeps strangers out; it is recorded.")
@click.option("--path", "paths", multiple=True, metavar="PATH", help="What all nodes need, and the same copy of it.")
@click.option("--from", "image", default="", metavar="REF", help="Image in a registry, which nodes that lack it pull.")
@click.option("--plain-http", is_flag=True, help="Allow http to a registry on another machine.")
@click.option("--prove", is_flag=True, help="Give the nodes work whose result is known; a bad one is named.")
@click.option("--timeout", type=Amount(), default=300.0, show_default=True, help="Seconds until all nodes are there.")
@dry_run
@shared
def up(
    app: App,
    wish: ClusterWish,
    port: int,
    opened: bool,
    paths: tuple[str, ...],
    image: str,
    plain_http: bool,
    prove: bool,
    timeout: float,
) -> int:
    """Bring up a cluster: every node is checked, gets the image, and is started with a token of the cluster's own.

    What is wrong is told of all nodes at once, and nothing is started then. A failure, Ctrl-C or a lost connection
    leaves nothing of this call. A cluster that stands is left as it is, but for what died of it.

    \b
    Examples:
      rlbox cluster up cluster-2node --nodes gpu005,gpu006 --dry-run
      rlbox cluster up cluster-2node --nodes gpu005,gpu006
      rlbox cluster up cluster-2node --nodes gpu005,gpu006 --from registry.example/team/cluster-2node:v1
    """
    from rlbox.cluster.up import UpWish, bring_up, look_at

    wanted = UpWish(
        **dataclasses.asdict(wish),
        port=port,
        open=opened,
        paths=paths,
        image=image,
        plain_http=plain_http,
        prove=prove,
        limit_s=timeout,
    )
    if app.dry_run:
        return look_at(app, wanted)
    status, started, proof = bring_up(app, wanted)
    data = {**status.as_json(), "started": list(started), "proof": proof.as_json() if proof else None}
    app.result(data, "\n".join(filter(None, (status.text(), proof.text() if proof else ""))))
    app.say("unchanged" if not started else f"started on {', '.join(started)}")
    app.say(f"next: rlbox cluster status {wish.words}, and then rlbox cluster down {wish.words}")
    return 0
