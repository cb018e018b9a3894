"""What every command about a cluster begins with: its target, its nodes, what they are, and what runs on them."""

from __future__ import annotations

import contextlib
import functools
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pydantic import TypeAdapter

from rlbox.app import App
from rlbox.cluster.connection import Node, NodePool, NodeStream, connect_nodes
from rlbox.cluster.node.facts import InstanceReport, InterfaceAddress, NodeFacts, RayInstance
from rlbox.cluster.plan import (
    LOCAL,
    NODE_LABEL,
    ClusterOptions,
    ClusterPlan,
    PortPlan,
    choose_ports,
    own_plan,
    plan_of_labels,
    resolve_cluster_name,
    resolve_node_specs,
)
from rlbox.errors import NodeError
from rlbox.fixes.conditions import list_stack_package_versions
from rlbox.i18n import _
from rlbox.image.plan import ImagePlan, load_image_plan
from rlbox.target.target import ClusterNode, Target, load_target

_REPORT_S = 120.0
_INSTANCES_S = 60.0
_REACH_S = 30.0
_adapter = functools.cache(TypeAdapter)


class Endpoint(NamedTuple):
    node: str
    address: str
    port: int


class ConnectionAttempt(NamedTuple):
    """A connection that the node `source` tried to another: `error` is what was wrong, empty where it came through."""

    source: str
    target: Endpoint
    error: str


@dataclass(frozen=True, kw_only=True)
class ClusterProbe:
    """The nodes as they were asked for and as they are, in order, the head first.

    `clock_offsets_s` are how far a node's clock is ahead of this machine's. `addresses` are where nodes are for the
    others; `taken_ports` are ports that could not be had, by node, each with its holder.
    """

    specs: tuple[ClusterNode, ...]
    facts: Mapping[str, NodeFacts]
    clock_offsets_s: Mapping[str, float]
    addresses: Mapping[str, InterfaceAddress] = field(default_factory=dict)
    connection_attempts: tuple[ConnectionAttempt, ...] = ()
    ports: PortPlan | None = None
    taken_ports: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def spec(self, name: str) -> ClusterNode:
        return next(spec for spec in self.specs if spec.name == name)

    def is_node_inplace(self, name: str) -> bool:
        """Whether Ray is to be processes there: as asked, or it has no engine, and the target was installed there."""
        facts = self.facts[name]
        return self.spec(name).here or (facts.engine.state == "absent" and facts.installation is not None)


def choose_unchecked_configured_or_ssh_addresses(
    specs: Sequence[ClusterNode], facts: Mapping[str, NodeFacts]
) -> dict[str, InterfaceAddress]:
    """Return where each node is for the others: as the target says, else where ssh reaches it.

    A node that ssh reaches by a forwarded port or by IPv6 is at its first address of IPv4, this machine at that from
    which it would send to another node.
    """
    found: dict[str, InterfaceAddress] = {}
    for spec in specs:
        own = facts[spec.name]
        if spec.address:
            found[spec.name] = own.find_address(spec.address) or InterfaceAddress("", spec.address)
        elif own.addresses:
            found[spec.name] = own.addresses[0]
    others = [one.address for name, one in found.items() if name != LOCAL]
    if others and any(spec.name == LOCAL and not spec.address for spec in specs):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
            route.connect((others[0], 9))
            if address := facts[LOCAL].find_address(route.getsockname()[0]):
                found[LOCAL] = address
    return found


def probe_nodes(pool: NodePool, specs: Sequence[ClusterNode], target: str, paths: Sequence[str] = ()) -> ClusterProbe:
    known = tuple(spec for spec in specs if spec.name in pool.nodes)

    def ask(node: Node) -> tuple[NodeFacts, float]:
        began = time.time()
        row = node.call("report_node", _REPORT_S, disk=node.spec.data, target=target, paths=list(paths))
        facts = _adapter(NodeFacts).validate_python(row)
        # what it could be ahead at most and at least, for it looked in between; what could be right is taken as right
        most, least = facts.own_clock_before_after_s[0] - began, facts.own_clock_before_after_s[1] - time.time()
        return facts, max(least, min(most, 0.0))

    results = pool.map(ask)
    facts = {name: facts for name, (facts, __) in results.items()}
    return ClusterProbe(
        specs=known,
        facts=facts,
        clock_offsets_s={name: offset for name, (__, offset) in results.items()},
        addresses=choose_unchecked_configured_or_ssh_addresses(known, facts),
    )


def probe_instances(node: Node, *, leave_out_containers: bool, timeout_s: float = _INSTANCES_S) -> InstanceReport:
    arguments = {"disk": node.spec.data, "leave_out_containers": leave_out_containers}
    row = node.call("report_instances", timeout_s, **arguments)
    report: InstanceReport = _adapter(InstanceReport).validate_python(row)
    return report


def attempt_connections_from_nodes(
    pool: NodePool, endpoints_by_source_node: Mapping[str, Sequence[Endpoint]]
) -> tuple[ConnectionAttempt, ...]:
    def ask(node: Node) -> list[ConnectionAttempt]:
        targets = endpoints_by_source_node[node.name]
        endpoints = [(one.address, one.port) for one in targets]
        errors = node.call("attempt_connections", _REACH_S, endpoints=endpoints)
        return [ConnectionAttempt(node.name, one, error) for one, error in zip(targets, errors, strict=True)]

    sources = [name for name, targets in endpoints_by_source_node.items() if targets]
    results, __ = pool.select_skipping_unconnected(sources).try_map(ask)
    return tuple(attempt for attempts in results.values() for attempt in attempts)


def plan_ports(probe: ClusterProbe, ignored_cluster_name: str, forced_base: int, lowest_base: int) -> PortPlan:
    listening = {port for facts in probe.facts.values() for port in facts.listening}
    others = [
        plan.ports
        for facts in probe.facts.values()
        for instance in facts.clusters
        if (plan := plan_of_labels(instance.labels))
        and own_plan(instance.labels, ignored_cluster_name, facts.machine.uid) is None
    ]
    return choose_ports(listening, others, forced_base, lowest_base)


def probe_ports_and_connections(pool: NodePool, probe: ClusterProbe, ports: PortPlan) -> ClusterProbe:
    """Return the probe with which ports of the plan are taken, and which of them let each other node in."""
    if not probe.specs:  # no node answered
        return probe
    head, names = probe.specs[0].name, list(probe.addresses)
    wanted = {
        name: sorted({*ports.listened(head=name == head), *ports.ports_to_try_from_others(head=name == head)})
        for name in names
    }
    with contextlib.ExitStack() as streams:

        def listen(node: Node) -> dict[int, str]:
            stream = streams.enter_context(contextlib.closing(node.stream("listen_on_ports", ports=wanted[node.name])))
            return {int(port): str(holder) for port, holder in stream.next_or_raise().items()}

        taken = pool.select_skipping_unconnected(list(wanted)).map(listen)
        endpoints: dict[str, list[Endpoint]] = {name: [] for name in names}
        for target in names:
            free = [port for port in ports.ports_to_try_from_others(head=target == head) if port not in taken[target]]
            for source in names:
                if source != target:
                    endpoints[source] += [Endpoint(target, probe.addresses[target].address, port) for port in free]
        attempts = attempt_connections_from_nodes(pool, endpoints)
    return replace(probe, ports=ports, taken_ports=taken, connection_attempts=attempts)


# ---- a target and its clusters


@dataclass(frozen=True, kw_only=True)
class ExistingCluster:
    plan: ClusterPlan
    instances: Mapping[str, RayInstance] = field(default_factory=dict)

    def was_found_running_on(self, node: str) -> bool:
        instance = self.instances.get(node)
        return instance is not None and instance.has_not_ended

    def start_log_stream(self, node: Node, patterns: Sequence[str], *, follow: bool) -> NodeStream:
        """Have a node report its logs (name, text, time of writing): their ends, with `follow` what they gain."""
        return node.stream(
            "follow_ray_logs",
            disk=node.spec.data,
            cluster_directory=self.plan.directory_relative_to_disk(node.name),
            is_inplace=self.instances[node.name].is_inplace,
            patterns=list(patterns),
            follow=follow,
        )


class ClusterContext:
    """A target with its nodes, connected; `pool` has those that answer."""

    def __init__(
        self, app: App, options: ClusterOptions, target: Target, pool: NodePool, specs: Sequence[ClusterNode]
    ) -> None:
        self.app, self.options, self.target, self.pool, self.specs = app, options, target, pool, tuple(specs)
        self.image: ImagePlan = load_image_plan(app.project, options.target)
        self.name = resolve_cluster_name(target, options.name)

    @property
    def ray_version(self) -> str:
        """The version of Ray that the target has, empty where it is not known before its lock."""
        return list_stack_package_versions(self.target, self.image.lock).get("ray", "")

    def probe(self, paths: Sequence[str] = ()) -> ClusterProbe:
        return probe_nodes(self.pool, self.specs, self.image.target, paths)

    def find_largest_own_cluster(self, probe: ClusterProbe) -> ExistingCluster | None:
        """Return the cluster of this name and user, None where there is none; of several the one on most nodes."""
        clusters: dict[str, ExistingCluster] = {}
        for facts in probe.facts.values():
            for instance in facts.clusters:
                if plan := own_plan(instance.labels, self.name, facts.machine.uid):
                    known = clusters[plan.id].instances if plan.id in clusters else {}
                    instances = {**known, instance.labels[NODE_LABEL]: instance}
                    clusters[plan.id] = ExistingCluster(plan=plan, instances=instances)

        def rank(cluster: ExistingCluster) -> tuple[int, str]:
            return sum(one.has_not_ended for one in cluster.instances.values()), cluster.plan.id

        return max(clusters.values(), key=rank, default=None)

    def require_own_cluster(self, probe: ClusterProbe) -> ExistingCluster:
        cluster = self.find_largest_own_cluster(probe)
        if cluster is None:
            raise NodeError(
                _("there is no cluster {name} on {facts}").format(
                    name=self.name, facts=", ".join(probe.facts) or _("any node that answers")
                ),
                next_step=f"rlbox cluster up {self.options.target_and_options_text}",
            )
        return cluster

    def require_running_head(self, cluster: ExistingCluster) -> Node:
        """Return the head of a cluster; `NodeError` where it does not answer or does not run."""
        head = cluster.plan.head.name
        if head not in self.pool.nodes:
            names = ",".join(member.name for member in cluster.plan.members)
            what, remedy = _("it is none of --nodes"), _("name it: --nodes {members}").format(members=names)
            for one in self.pool.unreached:
                if one.where == head:
                    what, remedy = f"{one.title}: {one.seen}", one.remedy
            text = _("the head of cluster {plan} cannot be reached: {what}").format(plan=cluster.plan.name, what=what)
            raise NodeError(text, where=head, next_step=remedy)
        if not cluster.was_found_running_on(head):
            raise NodeError(
                _("the head of cluster {plan} does not run").format(plan=cluster.plan.name),
                where=head,
                next_step=_("rlbox cluster up {words} brings back what died").format(
                    words=self.options.target_and_options_text
                ),
            )
        return self.pool.nodes[head]


@contextmanager
def open_context(app: App, options: ClusterOptions) -> Iterator[ClusterContext]:
    target = load_target(app.project, options.target).target
    specs = resolve_node_specs(target, options.nodes, options.data)
    resolve_cluster_name(target, options.name)
    with connect_nodes(specs) as pool:
        yield ClusterContext(app, options, target, pool, specs)
