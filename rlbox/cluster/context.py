"""What every command about a cluster begins with: its target, its nodes, and what runs on them already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlbox.app import App
from rlbox.cluster.checks import NodeNeeds
from rlbox.cluster.connection import Node, NodePool, NodeStream, connect_nodes
from rlbox.cluster.node.facts import RayInstance
from rlbox.cluster.nodes import ClusterOptions, NodeSpec, resolve_cluster_name, resolve_node_specs
from rlbox.cluster.plan import NODE_LABEL, ClusterPlan, own_plan
from rlbox.cluster.probe import ClusterProbe, probe_nodes
from rlbox.errors import NodeError
from rlbox.fixes.conditions import list_stack_versions
from rlbox.i18n import _
from rlbox.image.plan import ImagePlan, load_image_plan
from rlbox.target.lock import load_lock
from rlbox.target.target import load_target

if TYPE_CHECKING:
    from rlbox.target.target import Target

_LOG_BYTES = 1 << 21


@dataclass(frozen=True, kw_only=True)
class ExistingCluster:
    """A cluster as its nodes know it: its plan, and its Ray instances by node, running or not."""

    plan: ClusterPlan
    instances: Mapping[str, RayInstance] = field(default_factory=dict)

    def was_found_running_on(self, node: str) -> bool:
        instance = self.instances.get(node)
        return instance is not None and instance.is_running

    def start_log_stream(
        self, node: Node, patterns: Sequence[str], *, follow: bool, max_bytes: int = _LOG_BYTES
    ) -> NodeStream:
        """Have a node report its logs as `LogReport`: the last `max_bytes` of each, with `follow` what they gain."""
        return node.stream(
            "follow_ray_logs",
            disk=node.spec.data,
            cluster_directory=self.plan.directory_relative_to_disk(node.name),
            is_inplace=self.instances[node.name].is_inplace,
            patterns=list(patterns),
            max_bytes=max_bytes,
            follow=follow,
        )


class ClusterContext:
    """A target with its nodes, connected; `pool` has those that answer."""

    def __init__(
        self, app: App, options: ClusterOptions, target: Target, pool: NodePool, specs: Sequence[NodeSpec]
    ) -> None:
        self.app, self.options, self.target, self.pool, self.specs = app, options, target, pool, tuple(specs)
        self.image: ImagePlan = load_image_plan(app.project, options.target)
        self.name = resolve_cluster_name(target, options.name)

    @property
    def ray_version(self) -> str:
        """The version of Ray that the target has, empty where it is not known before its lock."""
        lock = load_lock(self.app.project.own_or_shipped_lock_file(self.options.target))
        return list_stack_versions(self.target, lock).get("ray", "")

    def probe(self, paths: Sequence[str] = ()) -> ClusterProbe:
        """Ask all nodes that answer."""
        return probe_nodes(self.pool, self.specs, self.image.target, paths)

    def needs(self, required_paths: tuple[str, ...] = ()) -> NodeNeeds:
        return NodeNeeds(
            hardware=self.target.hardware,
            disk=self.target.disk,
            cluster=self.name,
            target=self.target.name,
            lock=self.image.lock_checksum,
            paths=required_paths,
        )

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
            return sum(one.is_running for one in cluster.instances.values()), cluster.plan.id

        return max(clusters.values(), key=rank, default=None)

    def require_own_cluster(self, probe: ClusterProbe) -> ExistingCluster:
        cluster = self.find_largest_own_cluster(probe)
        if cluster is None:
            raise NodeError(
                _("there is no cluster {name} on {facts}").format(
                    name=self.name, facts=", ".join(probe.facts) or _("any node that answers")
                ),
                next_step=f"rlbox cluster up {self.options.option_text}",
            )
        return cluster

    def require_running_head(self, cluster: ExistingCluster) -> Node:
        """Return the head of a cluster; `NodeError` where it does not answer or does not run."""
        head = cluster.plan.head.name
        if head not in self.pool.nodes:
            finding = next((one for one in self.pool.unreached if one.where == head), None)
            names = ",".join(member.name for member in cluster.plan.members)
            raise NodeError(
                _("the head of cluster {plan} cannot be reached: {what}").format(
                    plan=cluster.plan.name,
                    what=f"{finding.title}: {finding.seen}" if finding else _("it is none of --nodes"),
                ),
                where=head,
                next_step=finding.remedy if finding else _("name it: --nodes {members}").format(members=names),
            )
        if not cluster.was_found_running_on(head):
            raise NodeError(
                _("the head of cluster {plan} does not run").format(plan=cluster.plan.name),
                where=head,
                next_step=_("rlbox cluster up {words} brings back what died").format(words=self.options.option_text),
            )
        return self.pool.nodes[head]


@contextmanager
def open_context(app: App, options: ClusterOptions) -> Iterator[ClusterContext]:
    """Connect to the nodes of a target, and hold the connections while the block runs."""
    target = load_target(app.project, options.target).target
    specs = resolve_node_specs(target, options.nodes, options.data)
    resolve_cluster_name(target, options.name)
    with connect_nodes(specs) as pool:
        yield ClusterContext(app, options, target, pool, specs)
