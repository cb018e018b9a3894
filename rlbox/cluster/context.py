"""What every command about a cluster begins with: its target, its nodes, and what runs on them already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlbox.app import App
from rlbox.cluster.facts import ClusterContainer
from rlbox.cluster.fleet import Fleet, connected
from rlbox.cluster.node_checks import NodeNeeds, needs_of
from rlbox.cluster.nodes import NodeSpec, resolve_cluster_name, select_nodes
from rlbox.cluster.options import ClusterOptions
from rlbox.cluster.plan import NODE_LABEL, ClusterPlan, own_plan
from rlbox.cluster.preflight import format_findings
from rlbox.cluster.survey import Survey, probe_nodes
from rlbox.errors import NodeError
from rlbox.findings import Finding
from rlbox.fixes.conditions import list_stack_versions
from rlbox.i18n import _
from rlbox.image.plan import ImagePlan, load_image_plan
from rlbox.target.lock import load_lock
from rlbox.target.target import load_target

if TYPE_CHECKING:
    from rlbox.target.target import Target


@dataclass(frozen=True, kw_only=True)
class RunningCluster:
    """A cluster as its nodes know it: its plan, and its containers, or lives of processes, by node."""

    plan: ClusterPlan
    containers: Mapping[str, ClusterContainer] = field(default_factory=dict)

    def going(self, node: str) -> bool:
        """Whether the container of a node runs."""
        found = self.containers.get(node)
        return found is not None and found.going


class ClusterContext:
    """A target with its nodes, connected; `fleet` are those that answer."""

    def __init__(self, app: App, options: ClusterOptions, fleet: Fleet, wishes: Sequence[NodeSpec]) -> None:
        self.app, self.options, self.fleet, self.wishes = app, options, fleet, tuple(wishes)
        self.target: Target = load_target(app.project, options.target).target
        self.image: ImagePlan = load_image_plan(app.project, options.target)
        self.name = resolve_cluster_name(self.target, options.name)

    @property
    def ray(self) -> str:
        """The version of Ray that the target has, empty where it is not known before its lock."""
        return list_stack_versions(self.target, load_lock(self.app.project.lock_file(self.options.target))).get(
            "ray", ""
        )

    def survey(self, paths: Sequence[str] = ()) -> Survey:
        """Ask all nodes that answer."""
        return probe_nodes(self.fleet, self.wishes, self.image, self.name, paths)

    def needs(self, paths: tuple[str, ...] = ()) -> NodeNeeds:
        """Return what the target asks of every node."""
        return needs_of(self.target, self.name, self.image.lock_checksum, paths)

    def standing(self, survey: Survey) -> RunningCluster | None:
        """Return the cluster of this name and of the user there, None where there is none.

        Where several lives of it are found, as after a start that was cut, the one of most nodes counts.
        """
        found: dict[str, dict[str, ClusterContainer]] = {}
        plans: dict[str, ClusterPlan] = {}
        for facts in survey.facts.values():
            for one in facts.clusters:
                if plan := own_plan(one.labels, self.name, facts.uid):
                    plans[plan.id] = plan
                    found.setdefault(plan.id, {})[one.labels[NODE_LABEL]] = one
        if not plans:
            return None
        most = max(found, key=lambda id_: (sum(one.going for one in found[id_].values()), len(found[id_])))
        return RunningCluster(plan=plans[most], containers=found[most])

    def require_standing(self, survey: Survey) -> RunningCluster:
        """As `standing`; `NodeError` where there is no such cluster."""
        found = self.standing(survey)
        if found is None:
            raise NodeError(
                _("there is no cluster {name} on {facts}").format(
                    name=self.name, facts=", ".join(survey.facts) or _("any node that answers")
                ),
                next_step=f"rlbox cluster up {self.options.option_text}",
            )
        return found


@contextmanager
def open_context(app: App, options: ClusterOptions) -> Iterator[ClusterContext]:
    """Connect to the nodes of a target, and hold the connections while the block runs."""
    target = load_target(app.project, options.target).target
    wishes = select_nodes(target, options.nodes, options.data)
    resolve_cluster_name(target, options.name)
    with connected(wishes, app.say) as fleet:
        yield ClusterContext(app, options, fleet, wishes)


def raise_findings(app: App, findings: Sequence[Finding]) -> None:
    """Show what is wrong with nodes; `NodeError` when something of it is an error."""
    if table := format_findings(findings):
        app.say(table)
    errors = [one for one in findings if one.level == "error"]
    if not errors:
        return
    nodes = {one.where.partition(":")[0] for one in errors}
    count = _("1 problem") if len(errors) == 1 else _("{count} problems").format(count=len(errors))
    where = _("1 node") if len(nodes) == 1 else _("{count} nodes").format(count=len(nodes))
    raise NodeError(
        _("{count} on {where}: nothing was started").format(count=count, where=where),
        where=", ".join(sorted(nodes)),
        next_step=errors[0].remedy,
    )
