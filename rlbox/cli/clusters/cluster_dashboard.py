"""`rlbox cluster dashboard`: Ray's dashboard, on this machine."""

from __future__ import annotations

from contextlib import suppress

import click

from rlbox.app import App
from rlbox.cli.clusters.cluster_options import cluster_options
from rlbox.cli.options import shared
from rlbox.cluster.wish import ClusterWish


@click.command()
@cluster_options
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port on 127.0.0.1 [a free one].")
@shared
def dashboard(app: App, wish: ClusterWish, port: int) -> int:
    """Open the way to a cluster's dashboard, at 127.0.0.1 of this machine, until Ctrl-C.

    It listens on the loopback of the head alone; the way goes through the connection to it. Requests that a page of
    somebody else's has a browser send are refused.

    \b
    Example:
      rlbox cluster dashboard cluster-2node --nodes gpu005,gpu006 --port 8265
    """
    from rlbox.cluster.work.dashboard import dashboard as open_dashboard

    with open_dashboard(app, wish, port) as found, suppress(KeyboardInterrupt):
        app.result({"url": found.url, "token_file": found.token_file, "head": found.head.name}, found.url)
        if found.token_file:
            app.say(f"it asks for the cluster's token, which is in {found.token_file} on {found.head.name}")
        app.say("Ctrl-C closes it")
        found.wait()
    return 0
