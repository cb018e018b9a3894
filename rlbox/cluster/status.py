"""The state of a cluster, asked from any machine that reaches its nodes; nothing of it is kept here."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlbox.amounts import columns, decimal_size_text
from rlbox.app import App
from rlbox.cluster.checks import format_findings
from rlbox.cluster.context import ClusterContext, ExistingCluster, open_context
from rlbox.cluster.facts import RayInstance
from rlbox.cluster.failures import MemberFacts, find_member_failures, format_failure_findings
from rlbox.cluster.nodes import LOCAL
from rlbox.cluster.options import ClusterOptions
from rlbox.cluster.plan import ClusterMember, ClusterPlan, MachineBootIdentity, plan_of_labels
from rlbox.cluster.pool import NodePool
from rlbox.cluster.probe import ClusterProbe, ConnectionAttempt, Endpoint, attempt_connections
from rlbox.cluster.ray_state import RayState, find_member_faults, query_ray_nodes
from rlbox.cluster.runtime import role_of
from rlbox.errors import NodeError
from rlbox.findings import Finding
from rlbox.i18n import _

_HEADER = ("node", "role", "address", "container", "Ray", "GPUs", "object store", "disk free")
_SSH_PORT = 22


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """One node: `container` as its engine has it, or as its processes are where it has none (`is_inplace`).

    `missing` is what Ray lacks of it, `store` and `disk_free` in bytes.
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
    is_inplace: bool = False

    @property
    def is_up_and_joined(self) -> bool:
        return not self.missing and self.container == "running"


@dataclass(frozen=True, kw_only=True)
class ClusterStatus:
    """A cluster and its nodes; `ray_error` is why Ray could not be asked.

    `failures` are what happened to nodes, the first first.
    """

    plan: ClusterPlan
    nodes: tuple[NodeStatus, ...]
    ray_error: str = ""
    failures: tuple[Finding, ...] = ()

    @property
    def healthy(self) -> bool:
        return all(node.is_up_and_joined for node in self.nodes) and not self.failures

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON types; no token is in it."""
        return {
            "cluster": self.plan.as_json(),
            "healthy": self.healthy,
            "nodes": [_node_json(node) for node in self.nodes],
            "said": self.ray_error,
            "listens": [],  # readers of before ask for it
            "failures": [one.as_json() for one in self.failures],
        }

    def text(self) -> str:
        plan = self.plan
        used = sum(node.gpus_used for node in self.nodes)
        gpus = f", {used:g} of {plan.gpus} GPUs used" if plan.gpus else ""
        head = f"cluster {plan.name} of {plan.target}: Ray {plan.ray}, {len(self.nodes)} nodes{gpus}"
        found = [": ".join(filter(None, (one.where, one.title, one.seen))) for one in self.failures]
        closed = f"closed by a token; by {plan.maker}, {plan.made}"
        port = plan.ports.of("dashboard")
        dashboard = f"dashboard: http://127.0.0.1:{port} on {plan.head.name}"
        if plan.head.name != LOCAL:
            dashboard += f", here by: ssh -N -L {port}:127.0.0.1:{port} {plan.head.name}"
        return "\n".join([head, closed, dashboard, *columns([_HEADER, *map(_format_node, self.nodes)]), *found])


def _node_json(node: NodeStatus) -> dict[str, Any]:
    row = dataclasses.asdict(node)
    is_inplace = row.pop("is_inplace")
    return {**row, "here": is_inplace, "healthy": node.is_up_and_joined}


def _format_node(node: NodeStatus) -> tuple[str, ...]:
    return (
        node.name,
        f"{node.role}, no engine" if node.is_inplace else node.role,
        node.address,
        node.container,
        node.missing or "alive",
        f"{node.gpus_used:g}/{node.gpus}",
        decimal_size_text(node.store) if node.store else "-",
        decimal_size_text(node.disk_free) if node.disk_free else "-",
    )


def create_status(
    plan: ClusterPlan, state: RayState, container_states: Mapping[str, str], disk_free_bytes: Mapping[str, int]
) -> ClusterStatus:
    """Return how a cluster is: `container_states` as engines say where nodes answer, both by node."""
    missing = find_member_faults(plan, state)
    nodes = []
    for member in plan.members:
        ray = state.find_alive_node(member.name)
        total, free = (ray.total, ray.free) if ray else ({}, {})
        nodes.append(
            NodeStatus(
                name=member.name,
                role=role_of(plan, member),
                address=member.address,
                container=container_states.get(member.name, "not reached"),
                missing="not asked" if state.error else missing.get(member.name, ""),
                gpus=member.gpus,
                gpus_used=total.get("GPU", 0) - free.get("GPU", 0),
                cpus=total.get("CPU", 0),
                store=total.get("object_store_memory", 0),
                disk_free=disk_free_bytes.get(member.name, 0),
                is_inplace=member.is_inplace,
            )
        )
    return ClusterStatus(plan=plan, nodes=tuple(nodes), ray_error=state.error)


# ---- asking


def probe_cluster(app: App, options: ClusterOptions) -> ClusterStatus:
    """Return how a cluster is; `NodeError` where no node that answers knows it."""
    with open_context(app, options) as context:
        probe = context.probe()
        cluster = context.find_largest_own_cluster(probe)
        if cluster is None:
            for line in context.pool.format_unreached():
                app.print_status(line)
        return find_status(context, probe, cluster or context.require_own_cluster(probe))


def find_status(context: ClusterContext, probe: ClusterProbe, cluster: ExistingCluster) -> ClusterStatus:
    """Return how a cluster is whose nodes were asked."""
    plan = cluster.plan
    head = context.pool.nodes.get(plan.head.name)
    if head is None:
        state = RayState(error="its head is none of the nodes that answer")
    elif not cluster.was_found_running_on(head.name):
        state = RayState(error="its head does not run")
    else:
        state = query_ray_nodes(head, plan)
    containers = {name: _format_instance(cluster.instances.get(name)) for name in probe.facts if plan.member(name)}
    disks = {name: facts.disk.free for name, facts in probe.facts.items()}
    remedies = {one.where: one.remedy for one in context.pool.unreached}
    back = f"rlbox cluster up {context.options.option_text} brings back what died"
    failures = format_failure_findings(
        find_member_failures(_list_member_facts(context, probe, cluster, state)), remedies, back
    )
    return dataclasses.replace(create_status(plan, state, containers, disks), failures=failures)


def _format_instance(one: RayInstance | None) -> str:
    if one is None:
        return "gone"
    return one.status if one.is_running else f"{one.status} ({one.exit_code}{', out of memory' if one.oom else ''})"


def require_healthy(context: ClusterContext, probe: ClusterProbe, cluster: ExistingCluster) -> None:
    """Refuse a cluster that lacks nodes, for which work would wait."""
    status = find_status(context, probe, cluster)
    if status.healthy:
        return
    bad = [f"  {node.name}: {node.container}, {node.missing}" for node in status.nodes if not node.is_up_and_joined]
    raise NodeError(
        _("cluster {plan} is not as it should be\n{table}").format(
            plan=status.plan.name, table=format_findings(status.failures) or "\n".join(bad)
        ),
        next_step=_("rlbox cluster up {words} brings back what died").format(words=context.options.option_text),
    )


# ---- what happened to nodes


def _list_member_facts(
    context: ClusterContext, probe: ClusterProbe, cluster: ExistingCluster, state: RayState
) -> Iterator[MemberFacts]:
    plan = cluster.plan
    unreached = {one.where: f"{one.title}: {one.seen}" for one in context.pool.unreached}
    missing = {plan.head.name: state.error} if state.error else find_member_faults(plan, state)
    attempts = connect_from_others_by_target(
        context.pool, plan, [member for member in plan.members if member.name in unreached]
    )
    for member in plan.members:
        facts, instance = probe.facts.get(member.name), cluster.instances.get(member.name)
        started_on = find_labelled_or_planned_identity(member, instance)
        yield MemberFacts(
            name=member.name,
            instance=instance,
            unreached=unreached.get(member.name, "" if facts else "it is none of the nodes that were named"),
            attempts=attempts.get(member.name, ()),
            missing=missing.get(member.name, ""),
            disk=facts.disk if facts else None,
            is_restarted=bool(facts and started_on and started_on != facts.identity),
            offset=probe.clock_offsets_s.get(member.name, 0.0),
            is_inplace=member.is_inplace,
        )


def find_labelled_or_planned_identity(member: ClusterMember, instance: RayInstance | None) -> MachineBootIdentity:
    """Return the identity that a node's machine had as its Ray was started: after a repair its own label has it."""
    own = plan_of_labels(instance.labels) if instance else None
    found = own.member(member.name) if own else None
    return found.identity if found else member.identity


def connect_from_others_by_target(
    pool: NodePool, plan: ClusterPlan, unreached_members: Sequence[ClusterMember]
) -> Mapping[str, tuple[ConnectionAttempt, ...]]:
    """Return how the other nodes reach those that are not heard of: at sshd's usual port, and at Ray's."""
    ports = (_SSH_PORT, plan.ports.of("node-manager"))
    endpoints = [Endpoint(one.name, one.address, port) for one in unreached_members for port in ports]
    names = {one.name for one in unreached_members}
    sources = [name for name, node in pool.nodes.items() if not node.is_lost and name not in names]
    attempts = (
        attempt_connections(pool.select_skipping_unconnected(sources), dict.fromkeys(sources, endpoints))
        if endpoints
        else ()
    )
    return {one.name: tuple(row for row in attempts if row.target == one.name) for one in unreached_members}
