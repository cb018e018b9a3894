"""The state of a cluster, asked from any machine that reaches its nodes; nothing of it is kept here."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlbox.amounts import columns, size_text
from rlbox.app import App
from rlbox.cluster.connection import NodeConnection
from rlbox.cluster.context import ClusterContext, RunningCluster, open_context
from rlbox.cluster.facts import ClusterContainer
from rlbox.cluster.failures import MemberFacts, find_failures
from rlbox.cluster.fleet import Fleet
from rlbox.cluster.listeners import find_undeclared_listeners
from rlbox.cluster.options import ClusterOptions
from rlbox.cluster.plan import ClusterMember, ClusterPlan, plan_of_labels
from rlbox.cluster.ray_runtime import role_of
from rlbox.cluster.ray_state import RayState, lacking
from rlbox.cluster.start import ask_state
from rlbox.cluster.survey import Survey, Way
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
    nodes = tuple(_node_row(plan, member, state, missing, containers, disks) for member in plan.members)
    return ClusterStatus(plan=plan, nodes=nodes, said=state.said)


def _node_row(
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


_SSH = 22


def probe_cluster(app: App, options: ClusterOptions) -> ClusterStatus:
    """Return how a cluster is; `NodeError` where no node that answers knows it."""
    with open_context(app, options) as context:
        survey = context.survey()
        standing = context.standing(survey)
        if standing is None:
            for one in context.fleet.unreached:
                app.say(f"{one.where}: {one.title}: {one.seen}")
        return status_here(context, survey, standing or context.require_standing(survey))


def status_here(context: ClusterContext, survey: Survey, standing: RunningCluster) -> ClusterStatus:
    """Return how a cluster is whose nodes are connected."""
    plan = standing.plan
    state = _state(context.fleet.links.get(plan.head.name), standing)
    containers = {name: _told(standing.containers.get(name)) for name in survey.facts if plan.member(name)}
    disks = {name: facts.disk.free for name, facts in survey.facts.items()}
    return dataclasses.replace(
        status_of(plan, state, containers, disks),
        listens=find_undeclared_listeners(context.fleet, plan, survey.facts),
        failures=_failures(context, survey, standing, state),
    )


def _failures(
    context: ClusterContext, survey: Survey, standing: RunningCluster, state: RayState
) -> tuple[Finding, ...]:
    """Return what happened to nodes of a cluster, the first first; what to do about it stands with each."""
    found = find_failures(_members(context, survey, standing, state))
    back = f"rlbox cluster up {context.options.option_text} brings back what died"
    reach = {one.where: one.remedy for one in context.fleet.unreached}
    several = len([one for one in found if not one.follows]) > 0 and len(found) > 1
    return tuple(
        one.finding(reach.get(one.node, back), first=several and number == 0) for number, one in enumerate(found)
    )


def _members(
    context: ClusterContext, survey: Survey, standing: RunningCluster, state: RayState
) -> Iterator[MemberFacts]:
    plan = standing.plan
    said = {one.where: f"{one.title}: {one.seen}" for one in context.fleet.unreached}
    missing = {plan.head.name: state.said} if state.said else lacking(plan, state)
    tried = ways_to(context.fleet, plan, [member for member in plan.members if member.name in said])
    for member in plan.members:
        facts, began = survey.facts.get(member.name), _identity(member, standing.containers.get(member.name))
        yield MemberFacts(
            name=member.name,
            container=standing.containers.get(member.name),
            said=said.get(member.name, "" if facts else "it is none of the nodes that were named"),
            ways=tried.get(member.name, ()),
            lost=missing.get(member.name, ""),
            disk=facts.disk if facts else None,
            restarted=bool(facts and began and began != facts.identity),
            offset=survey.offsets.get(member.name, 0.0),
            here=member.here,
        )


def _identity(member: ClusterMember, container: ClusterContainer | None) -> str:
    """Return the identity that a node's machine had as its Ray was started: after a heal its own label alone has it."""
    own = plan_of_labels(container.labels) if container else None
    found = own.member(member.name) if own else None
    return found.identity if found else member.identity


def ways_to(fleet: Fleet, plan: ClusterPlan, goals: list[ClusterMember]) -> Mapping[str, tuple[Way, ...]]:
    """Return how the nodes that are heard of reach those that are not: at sshd's usual port, and at Ray's."""
    rows = [(goal, port) for goal in goals for port in (_SSH, plan.ports.of("node-manager"))]

    def ask(link: NodeConnection) -> list[Way]:
        if not link.heard:
            return []
        told = link.ask("reach", goals=[(goal.address, port) for goal, port in rows], word="")["reached"]
        return [
            Way(source=link.name, goal=goal.name, address=goal.address, port=port, said=str(one["said"]))
            for (goal, port), one in zip(rows, told, strict=True)
        ]

    found, _ = fleet.tried(ask) if rows else ({}, {})
    ways = [way for several in found.values() for way in several]
    return {goal.name: tuple(way for way in ways if way.goal == goal.name) for goal in goals}


def _state(head: NodeConnection | None, standing: RunningCluster) -> RayState:
    if head is None:
        return RayState(said="its head is none of the nodes that answer")
    if not standing.going(head.name):
        return RayState(said="its head does not run")
    return ask_state(head, standing.plan)


def _told(one: ClusterContainer | None) -> str:
    if one is None:
        return "gone"
    why = ", out of memory" if one.oom else ""
    return one.status if one.going else f"{one.status} ({one.exit_code}{why})"
