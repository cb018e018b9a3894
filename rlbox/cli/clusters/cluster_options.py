"""What every verb about a cluster is told: the target, its nodes, the cluster's name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from rlbox.cli.offered import complete_target
from rlbox.cluster.wish import ClusterWish


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add TARGET, `--nodes`, `--name` and `--data`, and hand the verb a `ClusterWish` in their place."""

    @click.argument("target", metavar="TARGET", shell_complete=complete_target)
    @click.option("--nodes", metavar="A,B,…", default="", help="The nodes, the head first.")
    @click.option("--name", default="", metavar="NAME", help="One of several clusters of yours on the same nodes.")
    @click.option("--data", default="", metavar="DIR", help="Data disk of every node, in place of disk.host.")
    @functools.wraps(function)
    def with_wish(*args: Any, target: str, nodes: str, name: str, data: str, **rest: Any) -> Any:
        return function(*args, wish=ClusterWish(target=target, nodes=nodes, name=name, data=data), **rest)

    return with_wish
