"""`rlbox cluster`: several machines as one Ray cluster."""

from __future__ import annotations

import click

from rlbox.cli.clusters.cluster_dashboard import dashboard
from rlbox.cli.clusters.cluster_doctor import doctor
from rlbox.cli.clusters.cluster_down import down
from rlbox.cli.clusters.cluster_logs import logs
from rlbox.cli.clusters.cluster_status import status
from rlbox.cli.clusters.cluster_stop import stop
from rlbox.cli.clusters.cluster_submit import submit
from rlbox.cli.clusters.cluster_up import up
from rlbox.cli.help import CommandGroup


@click.group(cls=CommandGroup, epilog="Each takes -v, --verbose, -q, --quiet, --json, --project DIR.")
def verb() -> None:
    """Make several machines one closed Ray cluster, and take it away again.

    Nodes are names that your ssh knows, the head first: cluster.nodes of the target, or --nodes.

    \b
    Examples:
      rlbox cluster up cluster-2node --nodes gpu005,gpu006 --dry-run
      rlbox cluster up cluster-2node --nodes gpu005,gpu006
      rlbox cluster submit cluster-2node --nodes gpu005,gpu006 --working-dir . -- python train.py
      rlbox cluster down cluster-2node --nodes gpu005,gpu006
    """


for command in (up, status, submit, logs, stop, dashboard, down, doctor):
    verb.add_command(command)
