"""What the command line says of a cluster; nothing heavy is imported for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ClusterWish:
    """The target, and what is meant in place of what it says: nodes, the cluster's name, the data disk; empty: it."""

    target: str
    nodes: str = ""
    name: str = ""
    data: str = ""
