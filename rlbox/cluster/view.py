"""A cluster in words and as JSON types: where its nodes are, what runs on them, what of them is idle."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlbox.amounts import columns, size_text
from rlbox.cluster.plan import ClusterMember, ClusterPlan
from rlbox.cluster.ray import role_of
from rlbox.cluster.state import RayState, lacking
from rlbox.findings import Finding

_CLOSED = {
    "token": "closed by a token",
    "tls": "closed by TLS and rules for its ports",
    "nothing": "OPEN to whoever reaches its ports",
}

_HEAD = ("node", "role", "address", "container", "Ray", "GPUs", "object store", "disk free")


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """One node: `container` as its engine has it, or as its processes are where it has none (`here`).

    `missing` is what Ray lacks of it, `disk_free` in bytes.
    """

    name: str
    role: str
    address: str
    container: str
    missing: str
    gpus: int
    gpus_used: float
    cpus: float
    store: float
    disk_free: int
    here: bool = False

    @property
    def healthy(self) -> bool:
        """Whether it is as it should be."""
        return not self.missing and self.container == "running"


@dataclass(frozen=True, kw_only=True)
class ClusterStatus:
    """A cluster and its nodes; `said` is why Ray could not be asked.

    `listens` is what it listens on besides its plan, `failures` what happened to nodes, the first first.
    """

    plan: ClusterPlan
    nodes: tuple[NodeStatus, ...]
    said: str = ""
    listens: tuple[Finding, ...] = ()
    failures: tuple[Finding, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether every node is as it should be."""
        return all(node.healthy for node in self.nodes) and not (*self.listens, *self.failures)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON types; no key is in it."""
        rows = [{**dataclasses.asdict(node), "healthy": node.healthy} for node in self.nodes]
        return {
            "cluster": dataclasses.asdict(self.plan),
            "healthy": self.healthy,
            "nodes": rows,
            "said": self.said,
            "listens": [one.as_json() for one in self.listens],
            "failures": [one.as_json() for one in self.failures],
        }

    def text(self) -> str:
        """Return it in words."""
        plan = self.plan
        used, there = sum(node.gpus_used for node in self.nodes), plan.gpus
        gpus = f", {used:g} of {there} GPUs used" if there else ""
        head = f"cluster {plan.name} of {plan.target}: Ray {plan.ray}, {len(self.nodes)} nodes{gpus}"
        rows = [_HEAD, *(_row(node) for node in self.nodes)]
        found = [": ".join(filter(None, (one.where, one.title, one.seen))) for one in (*self.failures, *self.listens)]
        closed = f"{_CLOSED[plan.closed]}; by {plan.maker}, {plan.made}"
        return "\n".join([head, closed, *columns(rows), *found])


def _row(node: NodeStatus) -> tuple[str, ...]:
    return (
        node.name,
        f"{node.role}, no engine" if node.here else node.role,
        node.address,
        node.container,
        node.missing or "alive",
        f"{node.gpus_used:g}/{node.gpus}",
        size_text(node.store) if node.store else "-",
        size_text(node.disk_free) if node.disk_free else "-",
    )


def status_of(
    plan: ClusterPlan, state: RayState, containers: Mapping[str, str], disks: Mapping[str, int]
) -> ClusterStatus:
    """Return how a cluster is.

    Parameters
    ----------
    containers
        By node what its engine says of its container; a node that cannot be reached is missing.
    disks
        Free bytes of the nodes' data disks.
    """
    missing = lacking(plan, state)
    nodes = tuple(_node(plan, member, state, missing, containers, disks) for member in plan.members)
    return ClusterStatus(plan=plan, nodes=nodes, said=state.said)


def _node(
    plan: ClusterPlan,
    member: ClusterMember,
    state: RayState,
    missing: Mapping[str, str],
    containers: Mapping[str, str],
    disks: Mapping[str, int],
) -> NodeStatus:
    ray = state.alive(member.name)
    total, free = (ray.total, ray.free) if ray else ({}, {})
    return NodeStatus(
        name=member.name,
        role=role_of(plan, member),
        address=member.address,
        container=containers.get(member.name, "not reached"),
        missing="not asked" if state.said else missing.get(member.name, ""),
        gpus=member.gpus,
        gpus_used=total.get("GPU", 0) - free.get("GPU", 0),
        cpus=total.get("CPU", 0),
        store=total.get("object_store_memory", 0),
        disk_free=disks.get(member.name, 0),
        here=member.here,
    )
