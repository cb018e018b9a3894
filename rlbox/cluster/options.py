"""What the command line says of a cluster; nothing heavy is imported for it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """The target, and what is meant in place of what it says: nodes, the cluster's name, the data disk; empty: it."""

    target: str
    nodes: str = ""
    name: str = ""
    data: str = ""

    @property
    def option_text(self) -> str:
        """The same, as it is typed behind a verb."""
        told = (("--nodes", self.nodes), ("--name", self.name), ("--data", self.data))
        return " ".join([self.target, *(f"{option} {shlex.quote(text)}" for option, text in told if text)])
