"""Take a cluster away: containers, processes, token, sessions and logs, on every node that answers."""

from __future__ import annotations

import shlex
from typing import NamedTuple

from rlbox.app import App
from rlbox.cluster.connection import Node, lock_nodes
from rlbox.cluster.context import ClusterContext, ExistingCluster, open_context
from rlbox.cluster.jobs import JobsApi
from rlbox.cluster.node.facts import NodeFacts
from rlbox.cluster.plan import (
    ID_LABEL,
    LOCAL,
    NODE_LABEL,
    ClusterOptions,
    ClusterPlan,
    cluster_directory_relative_to_disk,
    own_plan,
)
from rlbox.cluster.runtime import stop_ray
from rlbox.engine.container import ACTIVE_STATES, RUN_LABEL
from rlbox.errors import LockHeld, NodeError, RlboxError
from rlbox.findings import join_and_count_rest
from rlbox.i18n import _

_GRACE_S = 5
_DOWN_S = 240.0


class DownResult(NamedTuple):
    name: str
    gone: dict[str, list[str]]


def remove_cluster(app: App, options: ClusterOptions, *, even_if_in_use: bool = False) -> DownResult:
    """Take a cluster away on the nodes that answer; `NodeError` where others do not, `LockHeld` where it is in use."""
    with open_context(app, options) as context:
        gone: dict[str, list[str]] = {}
        if context.pool.nodes:
            with lock_nodes(context.pool):
                probe = context.probe()
                cluster = context.find_largest_own_cluster(probe)
                if cluster and not even_if_in_use:
                    require_unused(context, cluster)
                gone = context.pool.map(lambda node: _clear_node(context, node, probe.facts[node.name]))
        if context.pool.unreached:
            raise NodeError(
                _("cluster {context} may be left on nodes that cannot be reached{done}\n{lines}").format(
                    context=context.name,
                    done=_("; it is gone from {gone}").format(gone=", ".join(gone)) if gone else "",
                    lines="\n".join(f"  {line}" for line in context.pool.format_unreached()),
                ),
                next_step=f"rlbox cluster down {options.target_and_options_text}, once they answer",
            )
        return DownResult(context.name, gone)


def _clear_node(context: ClusterContext, node: Node, facts: NodeFacts) -> list[str]:
    uid = facts.machine.uid
    own = [one for one in facts.clusters if own_plan(one.labels, context.name, uid)]
    for one in own:
        stop_ray(node, one, _GRACE_S)
    names = {node.name, *(one.labels[NODE_LABEL] for one in own)}
    paths = sorted(cluster_directory_relative_to_disk(uid, context.name, name) for name in names)
    arguments = {"paths": paths, "remove_empty_cache_dirs": any(not one.is_inplace for one in own)}
    removed = node.call("kill_and_remove_clusters", _DOWN_S, disk=node.spec.data, **arguments)
    return [*(one.name for one in own), *removed]


# ---- what goes on there


def format_head_run_command(plan: ClusterPlan, subcommand: str, run_id: str) -> str:
    where = "" if plan.head.name == LOCAL else f"DOCKER_HOST=ssh://{plan.head.name} "
    return _("{where}rlbox {verb} {run} --target {target} --data {data}").format(
        where=where, verb=subcommand, run=run_id, target=plan.target, data=shlex.quote(plan.head.data)
    )


def require_unused(context: ClusterContext, cluster: ExistingCluster) -> None:
    """Refuse to end the Ray of a cluster under a job or a run, or where nobody knows of one.

    A cluster whose head has ended has lost its jobs already, and with them what its runs do.
    """
    plan, option_text = cluster.plan, context.options.target_and_options_text
    down = f"rlbox cluster down {option_text} --force"
    head = context.pool.nodes.get(plan.head.name)
    if head and not cluster.was_found_running_on(head.name):
        return
    work: list[str] = []
    stop, unknown = "", "" if head else "its head is not reached"
    try:
        for row in (
            head.engine().list_all_containers_with_label(f"{ID_LABEL}={plan.id}")
            if head and not plan.head.is_inplace
            else ()
        ):
            run = row["Labels"].get(RUN_LABEL, "")
            if run and row.get("State") in ACTIVE_STATES:
                stop = stop or format_head_run_command(plan, "stop", run)
                work.append(f"run {run}")
        for job in JobsApi(head, plan).list_jobs() if head else ():
            if not job.has_ended:
                stop = stop or f"rlbox cluster stop {option_text} {job.id}"
                work.append(f"job {job.id} ({job.entrypoint[:80]})")
    except RlboxError as error:
        unknown = error.what
    if work:
        raise LockHeld(
            _("cluster {plan} is in use: {told}").format(plan=plan.name, told=join_and_count_rest(work)),
            where=plan.head.name,
            next_step=_("{stop}, then the same command again; or {down}").format(stop=stop, down=down),
        )
    if unknown:
        raise NodeError(
            _("what goes on on cluster {plan} is not known: {unknown}").format(plan=plan.name, unknown=unknown),
            where=plan.head.name,
            next_step=_("the same command again; or {down}, where nothing of it is needed").format(down=down),
        )
