"""What Ray says of its nodes, and what a cluster lacks of its plan."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from rlbox.cluster.connection import Node
from rlbox.cluster.plan import ClusterPlan
from rlbox.cluster.runtime import run_packaged_script, select_runtime
from rlbox.errors import RlboxError


@dataclass(frozen=True, kw_only=True)
class RayNode:
    """A node as Ray knows it, a new one with each start; `free` and `total` are resources."""

    id: str
    name: str
    alive: bool
    total: Mapping[str, float] = field(default_factory=dict)
    free: Mapping[str, float] = field(default_factory=dict)
    death_reason: str = ""


@dataclass(frozen=True, kw_only=True)
class RayState:
    """The nodes that Ray knows; `error` is why it could not be asked."""

    nodes: tuple[RayNode, ...] = ()
    error: str = ""

    def find_alive_node(self, name: str) -> RayNode | None:
        return next((node for node in self.nodes if node.name == name and node.alive), None)


def read_state(line: str) -> RayState:
    """Return the state that a line of the script in the head's container reports; one that is none says so."""
    try:
        return _adapter().validate_json(line)
    except ValidationError:
        return RayState(error=f"Ray's state cannot be read: {line[:80]!r}")


@functools.cache
def _adapter() -> TypeAdapter[RayState]:
    return TypeAdapter(RayState)


def find_member_faults(plan: ClusterPlan, state: RayState, stale_ray_node_ids: Collection[str] = ()) -> dict[str, str]:
    """Return the nodes of a plan that are not as they should be, each with what is missing.

    `stale_ray_node_ids` are ids of nodes that were ended: Ray calls one alive for half a minute, and gives it work.
    """
    known = [node for node in state.nodes if node.id not in stale_ray_node_ids]
    leaving = {node.name for node in state.nodes if node.id in stale_ray_node_ids and node.alive}
    missing = {}
    for member in plan.members:
        lives = [node for node in known if node.name == member.name]
        alive = next((node for node in lives if node.alive), None)
        if alive is None:
            missing[member.name] = (
                f"Ray lost it: {lives[-1].death_reason or 'it ended'}" if lives else "it has not joined"
            )
        elif alive.total.get("GPU", 0) < member.gpus:
            missing[member.name] = f"{alive.total.get('GPU', 0):g} of {member.gpus} GPUs"
        elif member.name in leaving:
            missing[member.name] = "Ray has not given up yet what was ended there"
    return missing


def query_ray_nodes(head: Node, plan: ClusterPlan) -> RayState:
    """Return what Ray says now, or why it cannot be asked."""
    address = f"{plan.head.address}:{plan.ports.of('gcs')}"
    try:
        lines = list(run_packaged_script(select_runtime(head, plan, plan.head), "ray_state.py", address))
    except RlboxError as error:
        return RayState(error=error.what)
    return read_state(lines[-1]) if lines else RayState(error="Ray's head does not run, or does not answer")
