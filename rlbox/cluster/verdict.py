"""What went wrong with a cluster while it was used, on which node first, in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlbox.amounts import size_text

SILENT_S = 4.0
"""Without a beat for that long a node is asked for by the others; a beat comes every second."""

OURS = "ours"
"""The kind of a loss that is none: the connection from here broke, and the cluster lives on."""

_KILLED = (137, 143)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What happened to a node at `at` (seconds since 1970): killed, memory, removed, ended, gone, disk or ours."""

    node: str
    kind: str
    at: float
    said: str = ""

    def sentence(self, role: str) -> str:
        """Return it as a sentence."""
        match self.kind:
            case "killed":
                return f"the container of {role} {self.node} was killed ({self.said})"
            case "memory":
                return f"the container of {role} {self.node} had no memory left, and was killed"
            case "removed":
                return f"the container of {role} {self.node} was removed"
            case "ended":
                return f"Ray ended on {role} {self.node} ({self.said})"
            case "gone":
                return f"{role} {self.node} is gone: neither this machine nor the other nodes reach it (power or cable)"
            case "disk":
                return f"the data disk of {role} {self.node} is full ({self.said})"
            case _:
                return f"the connection to {role} {self.node} broke; the other nodes reach it, the cluster lives on"


def loss_of_container(node: str, row: Mapping[str, Any], at: float) -> Loss:
    """Return the loss behind a container that ended, as the engine describes it."""
    code, status = int(row.get("exit_code", -1)), str(row.get("status", ""))
    if status == "removed":
        return Loss(node=node, kind="removed", at=at)
    if row.get("oom"):
        return Loss(node=node, kind="memory", at=at)
    kind = "killed" if code in _KILLED else "ended"
    return Loss(node=node, kind=kind, at=at, said=f"exit code {code}")


def loss_of_disk(node: str, free: int, at: float) -> Loss:
    """Return the loss of a data disk with few bytes left; fewer than 0: it cannot be looked at."""
    said = f"{size_text(free)} left" if free >= 0 else "it cannot be looked at"
    return Loss(node=node, kind="disk", at=at, said=said)


def first_loss(losses: Iterable[Loss]) -> Loss | None:
    """Return the loss that came first: Ray ends by itself where another node went away, but later; None for none."""
    return min((loss for loss in losses if loss.kind != OURS), key=lambda loss: loss.at, default=None)
