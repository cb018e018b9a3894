"""Run a command line on the head of a running cluster, its nodes being watched from here meanwhile."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rlbox.app import App
from rlbox.cluster.connection import Node
from rlbox.cluster.context import ClusterContext, ExistingCluster, open_context
from rlbox.cluster.down import format_head_run_command
from rlbox.cluster.node.facts import HelperState
from rlbox.cluster.nodes import ClusterOptions
from rlbox.cluster.plan import ClusterPlan
from rlbox.cluster.probe import ClusterProbe
from rlbox.cluster.runtime import RAY_DIRECTORY
from rlbox.cluster.status import NodeMonitor, require_healthy
from rlbox.errors import EngineError, NodeError, RlboxError
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.values import Secret

HEAD_VARIABLE = "RLBOX_BESIDE_HEAD"
"""Set, to the cluster's name, for a command that is carried out beside the head."""

_STATUS_FILE = "nodes.json"


@dataclass(frozen=True, kw_only=True)
class HeadCommand:
    """A command line: `rlbox_args` after `rlbox`, with `env` more variables and secrets, for the run named `run_id`."""

    rlbox_args: tuple[str, ...]
    run_id: str
    env: Mapping[str, str]
    secrets: Mapping[str, Secret]
    terminal: bool = False


class UsableCluster(NamedTuple):
    """A cluster that a run could be on, and the directory of its head's Ray as containers see it."""

    plan: ClusterPlan
    ray_directory_in_container: str


def require_usable_cluster(app: App, options: ClusterOptions) -> UsableCluster:
    """Return the cluster; `NodeError` where it lacks nodes, or its head has no engine."""
    with open_context(app, options) as context:
        plan = _require_usable(context)[0].plan
        return UsableCluster(plan, ray_directory(plan, context.image.container.mount))


def ray_directory(plan: ClusterPlan, mount: str) -> str:
    """Return the directory of the head's Ray, as containers name it on the data disk."""
    return f"{mount}/{plan.directory_relative_to_disk(plan.head.name)}/{RAY_DIRECTORY}"


def _require_usable(context: ClusterContext) -> tuple[ExistingCluster, ClusterProbe, Node]:
    """Return a cluster with its head; `NodeError` where it lacks nodes, or its head has no engine."""
    probe = context.probe()
    cluster = context.require_own_cluster(probe)
    head = context.require_running_head(cluster)
    if probe.facts[head.name].engine.state != "ok":
        raise NodeError(
            _("Docker is not reachable on the head node, which must start the run's container"), where=head.name
        )
    require_healthy(context, probe, cluster)
    return cluster, probe, head


def run_rlbox_on_head_node(app: App, options: ClusterOptions, command: HeadCommand) -> int:
    """Carry out a command line in a container beside the head, with this process's streams; return its exit code.

    What happens to nodes meanwhile is said; when the run failed, that is laid beside its evidence. A run that had
    started goes on where the head is no longer reached (`NodeError`).
    """
    with open_context(app, options) as context:
        cluster, probe, head = _require_usable(context)
        line = format_head_run_command(cluster.plan, "logs", command.run_id)
        app.print_status(f"the run is on node {head.name}; from here: {line}")
        monitor = NodeMonitor(context, cluster, probe.clock_offsets_s)
        try:
            code = _run(app, head, cluster, command, monitor)
            if code:
                _write_evidence(app, head, command.run_id, monitor)
            return code
        finally:
            monitor.close()


def _run(app: App, head: Node, cluster: ExistingCluster, command: HeadCommand, monitor: NodeMonitor) -> int:
    from rlbox.engine.remote_helper import HelperContainer, run_helper_and_fetch_files
    from rlbox.ssh.tunnel import EngineTunnel

    plan, machine = cluster.plan, head.machine
    state = HelperState(*head.call("create_helper_state", engine_socket=machine.engine_socket))
    tunnel = EngineTunnel(
        address=head.local_engine_url,
        remote_socket=machine.engine_socket,
        uid=machine.uid,
        gid=machine.gid,
        socket_gid=state.socket_gid,
        home=state.home,
        remote_state_directory=state.state,
    )
    secrets = {name: secret.reveal() for name, secret in command.secrets.items()}
    helper = HelperContainer(
        target=plan.target,
        image=cluster.instances[head.name].image,
        data_dir=plan.head.data,
        create_data_dir=False,
        rlbox_args=command.rlbox_args,
        env={**command.env, **secrets, HEAD_VARIABLE: plan.name, "RLBOX_DATA": plan.head.data},
        terminal=command.terminal,
    )
    try:
        return run_helper_and_fetch_files(tunnel, app.project, helper)
    except EngineError as error:
        raise NodeError(
            monitor.explain(error),
            where=head.name,
            next_step=format_head_run_command(plan, "logs", command.run_id),
        ) from error


def _write_evidence(app: App, head: Node, run: str, monitor: NodeMonitor) -> None:
    """Lay what happened to nodes beside the evidence of a run that failed."""
    directory = _find_evidence_directory(head, run)
    if not directory:
        return
    failures = [one.as_json() for one in monitor.probe_and_list_findings()]
    status = {
        "schema": 1,
        "failures": failures,
        "nodes": {name: {"answers": is_live} for name, is_live in monitor.get_liveness_by_node().items()},
    }
    path, text = f"{directory}/{_STATUS_FILE}", json.dumps(status, indent=1) + "\n"
    try:
        head.call("write_private_file", disk=head.spec.data, path=path, text=text)
    except NodeError as error:
        app.print_status(f"evidence of the nodes was not written: {error.what}")
        return
    app.print_status(f"evidence of all nodes: {head.spec.data}/{path} on {head.name}")


def _find_evidence_directory(head: Node, run: str) -> str:
    """Return where, below the head's data disk, the evidence of the stage that failed is; empty where none is.

    `run` may be the beginning of its name that no other run has.
    """
    disk = head.spec.data
    with contextlib.suppress(RlboxError, ValueError, LookupError, TypeError, AttributeError):
        names = head.call("list_disk_directory_or_empty", disk=disk, path="runs")
        (name,) = [run] if run in names else [name for name in names if name.startswith(run)]
        record = parse_json(str(head.call("read_disk_text_or_empty", disk=disk, path=f"runs/{name}/run.json")))
        (stage, *__) = [stage for stage in record["stages"] if stage.get("state") == "failed"]
        return f"runs/{name}/{stage['directory']}/evidence"
    return ""
