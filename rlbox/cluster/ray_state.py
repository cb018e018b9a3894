"""What Ray says of its nodes, as the program in the head's container tells it, and what a cluster lacks of its plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlbox.cluster.plan import ClusterPlan
from rlbox.foreign import parse_json


@dataclass(frozen=True, kw_only=True)
class RayMember:
    """A life of a node as Ray knows it; `free` and `total` are its resources by name, `why` the reason of its end."""

    name: str
    address: str
    alive: bool
    total: Mapping[str, float] = field(default_factory=dict)
    free: Mapping[str, float] = field(default_factory=dict)
    why: str = ""
    id: str = ""


@dataclass(frozen=True, kw_only=True)
class RayState:
    """The nodes that Ray knows; `said` is why it could not be asked, empty where it was.

    `leaving` names nodes of which Ray calls a life alive that was ended: it may give that one work still.
    """

    nodes: tuple[RayMember, ...] = ()
    said: str = ""
    leaving: tuple[str, ...] = ()

    def lives(self, names: Iterable[str]) -> frozenset[str]:
        """Return the lives of nodes by their ids; Ray calls one alive for some time after it was killed."""
        wanted = {*names}
        return frozenset(node.id for node in self.nodes if node.name in wanted)

    def alive(self, name: str) -> RayMember | None:
        """Return a node that is alive, None where there is none of that name."""
        return next((node for node in self.nodes if node.name == name and node.alive), None)

    def lost(self, name: str) -> RayMember | None:
        """Return the last life of a node that has ended and has no other."""
        ended = [node for node in self.nodes if node.name == name and not node.alive]
        return ended[-1] if ended and not self.alive(name) else None


def read_state(line: str) -> RayState:
    """Return the state of a line of the program; one that cannot be read says so."""
    try:
        row = parse_json(line)
        nodes, leaving = (tuple(row.get(key, ())) for key in ("nodes", "leaving"))
        return RayState(
            nodes=tuple(_node(one) for one in nodes),
            said=str(row.get("said", "")),
            leaving=tuple(str(name) for name in leaving),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return RayState(said=f"Ray's state cannot be read: {line[:80]!r}")


def _node(row: Mapping[str, Any]) -> RayMember:
    return RayMember(
        name=str(row["name"]),
        address=str(row["address"]),
        alive=bool(row["alive"]),
        total={str(key): float(value) for key, value in row.get("total", {}).items()},
        free={str(key): float(value) for key, value in row.get("free", {}).items()},
        why=str(row.get("why", "")),
        id=str(row.get("id", "")),
    )


def lacking(plan: ClusterPlan, state: RayState) -> dict[str, str]:
    """Return the nodes of a plan that are not there as they should be, each with what it lacks."""
    found = {}
    for member in plan.members:
        node = state.alive(member.name)
        if node is None:
            lost = state.lost(member.name)
            found[member.name] = f"Ray lost it: {lost.why or 'it ended'}" if lost else "it has not joined"
        elif node.total.get("GPU", 0) < member.gpus:
            found[member.name] = f"{node.total.get('GPU', 0):g} of {member.gpus} GPUs"
        elif member.name in state.leaving:
            found[member.name] = "Ray has not given up yet what was ended there"
    return found
