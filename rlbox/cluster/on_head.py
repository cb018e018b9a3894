"""Run a command line on the head of a running cluster, its nodes being watched from here meanwhile."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping

from rlbox.app import App
from rlbox.cluster.connection import Node
from rlbox.cluster.context import ClusterContext, ClusterProbe, ExistingCluster, open_context
from rlbox.cluster.down import format_head_run_command
from rlbox.cluster.plan import ClusterOptions, ClusterPlan
from rlbox.cluster.runtime import RAY_DIRECTORY
from rlbox.cluster.status import NodeMonitor, require_healthy
from rlbox.errors import EngineError, NodeError, RlboxError
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.ssh.tunnel import describe_tunnel

HEAD_VARIABLE = "RLBOX_BESIDE_HEAD"
"""Set, to the cluster's name, for a command that is carried out beside the head."""

_STATUS_FILE = "nodes.json"


def require_usable_cluster(app: App, options: ClusterOptions) -> ClusterPlan:
    with open_context(app, options) as context:
        return _require_usable(context)[0].plan


def ray_directory(plan: ClusterPlan, mount: str) -> str:
    return f"{mount}/{plan.directory_relative_to_disk(plan.head.name)}/{RAY_DIRECTORY}"


def _require_usable(context: ClusterContext) -> tuple[ExistingCluster, ClusterProbe, Node]:
    probe = context.probe()
    cluster = context.require_own_cluster(probe)
    head = context.require_running_head(cluster)
    if probe.facts[head.name].engine.state != "ok":
        raise NodeError(
            _("Docker is not reachable on the head node, which must start the run's container"), where=head.name
        )
    require_healthy(context, probe, cluster)
    return cluster, probe, head


def run_rlbox_in_container_beside_head(
    app: App,
    options: ClusterOptions,
    rlbox_args: tuple[str, ...],
    run_id: str,
    env: Mapping[str, str],
    *,
    terminal: bool,
) -> int:
    """Carry out a command line in a container beside the head, with this process's streams; return its exit code.

    What happens to nodes meanwhile is said, and is laid beside the evidence of a run that failed.
    """
    from rlbox.engine.remote_helper import HelperContainer, run_helper_and_fetch_files

    with open_context(app, options) as context:
        cluster, probe, head = _require_usable(context)
        plan = cluster.plan
        logs_command = format_head_run_command(plan, "logs", run_id)
        app.print_status(f"the run is on node {head.name}; from here: {logs_command}")
        helper = HelperContainer(
            target=plan.target,
            image=cluster.instances[head.name].image,
            data_dir=plan.head.data,
            create_data_dir=False,
            rlbox_args=rlbox_args,
            env={**env, HEAD_VARIABLE: plan.name, "RLBOX_DATA": plan.head.data},
            terminal=terminal,
        )
        with contextlib.closing(NodeMonitor(context, cluster, probe.clock_offsets_s)) as monitor:
            try:
                engine = head.engine_unix_url_forwarding_if_remote
                tunnel = describe_tunnel(engine, head.machine.engine_socket, head.run_shell)
                code = run_helper_and_fetch_files(tunnel, app.project, helper)
            except EngineError as error:
                raise NodeError(monitor.stop_and_explain(error), where=head.name, next_step=logs_command) from error
            if code:
                _write_evidence(app, head, run_id, monitor)
            return code


def _write_evidence(app: App, head: Node, run: str, monitor: NodeMonitor) -> None:
    directory = _find_evidence_directory(head, run)
    if not directory:
        return
    failures = [one.as_json() for one in monitor.stop_and_show_findings()]
    status = {
        "schema": 1,
        "failures": failures,
        "nodes": {name: {"answers": is_live} for name, is_live in monitor.answered_so_far_by_node().items()},
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
