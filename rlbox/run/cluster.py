"""A run over the nodes of a cluster that stands: its supervisor is beside the head, its stages are jobs of its Ray.

The container of the run is one more on the head's host, like that of a run on one machine: so a connection that breaks
ends nothing, and `logs`, `stop` and `--resume` are what they are there. From a machine that is not the head's the whole
command line is carried out there, and the nodes are watched from here meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from rlbox.app import App
from rlbox.cluster.checks import format_findings
from rlbox.cluster.lifecycle import format_run_command_on_head
from rlbox.cluster.nodes import ClusterContext, ExistingCluster, Node, open_context
from rlbox.cluster.plan import (
    CLUSTER_LABEL,
    ID_LABEL,
    ROLE_LABEL,
    ClusterOptions,
    ClusterPlan,
    own_plan,
    resolve_cluster_name,
)
from rlbox.cluster.runtime import HEAD, RAY_DIRECTORY, ray_env
from rlbox.cluster.status import NodeFailureMonitor, query_ray_for_cluster_status
from rlbox.engine.connection import connect_engine
from rlbox.engine.data_disk import ensure_usable_data_dir_creating_default
from rlbox.errors import EngineError, MachineError, RlboxError, SpecError
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.image.context import find_image_outdated_reason
from rlbox.image.names import PROJECT_NAME_VARIABLE, parse_image_tag_or_empty
from rlbox.image.plan import load_image_plan
from rlbox.job.cluster_job import ClusterParams, ResolvedJob, adapt_job_to_cluster
from rlbox.job.job import Job
from rlbox.job.params import ParamValues
from rlbox.job.plan import RayNodeAddress, RunCluster
from rlbox.record.run_dir import create_run_id
from rlbox.record.run_store import RunStore
from rlbox.run.backend import CLUSTER, RunOptions, open_container_runtime
from rlbox.run.data_disk import LOCAL_FILE_OPTIONS, drop_options_and_their_values, resolve_local_run_store
from rlbox.run.docker import DockerRunStarter, bytecode_dir_relative_to_data_disk, require_devices_and_choose_gpus
from rlbox.ssh.tunnel import probe_remote_engine
from rlbox.target.target import load_target
from rlbox.values import Secret

HEAD_VARIABLE = "RLBOX_BESIDE_HEAD"
"""Set, to the cluster's name, for a command that is carried out beside the head."""

_RUN = "RLBOX_RUN_ID"
"""The name of the run, for the command line beside the head."""

_PARTS = ("gcs", "dashboard", "client")
_STATUS_FILE = "nodes.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Head:
    plan: ClusterPlan
    image: str
    folder: str


class ClusterBackend:
    def __init__(self, options: RunOptions) -> None:
        self._options = options
        self._known: _Head | None = None

    @property
    def is_data_disk_on_this_machine(self) -> bool:
        return bool(os.environ.get(HEAD_VARIABLE))

    def open_store_or_run_remotely_and_exit(
        self, app: App, target: str, secrets_to_send: Mapping[str, Secret]
    ) -> RunStore:
        if self.is_data_disk_on_this_machine:
            return resolve_local_run_store(app, target, self._options.data)
        options = dataclasses.replace(self._name_cluster(target), data=self._options.data or "")
        if not app.dry_run:
            raise click.exceptions.Exit(_run_on_head(app, options, secrets_to_send))
        with app.collecting_refusals_if_dry_run("cluster"):
            plan = require_usable_cluster(app, options)
            mount = load_image_plan(app.project, target).container.disk_mount
            self._known = _Head(plan=plan, image="", folder=_ray_directory(plan, mount))
        disk = self._known.plan.head.data if self._known else load_target(app.project, target).target.disk.host
        return RunStore(data_dir=Path(disk), open_runtime=open_container_runtime)

    def _name_cluster(self, target: str) -> ClusterOptions:
        return ClusterOptions(target=target, nodes=self._options.nodes, name=self._options.cluster)

    def adapt_job_if_on_cluster(self, app: App, target: str, job: Job, values: ParamValues) -> ResolvedJob:
        head = self._head(app, target)
        if head is None:  # the dry run has said so
            name = resolve_cluster_name(load_target(app.project, target).target, self._options.cluster)
            return ResolvedJob(job=job, values=values, cluster=RunCluster(name=name, closed="", nodes=()))
        plan = head.plan
        gives = ClusterParams(
            head_address=plan.head.address,
            nodes=len(plan.members),
            gpus_per_node=plan.head.gpus,
            total_gpus=plan.gpus,
            temp_dir=head.folder,
            ports={part: plan.ports.of(part) for part in _PARTS},
        )
        run_id = os.environ.get(_RUN, "") if self.is_data_disk_on_this_machine else ""
        adapted = adapt_job_to_cluster(job, values, gives)
        return dataclasses.replace(adapted, cluster=self._run_on(target, plan), preset_run_id=run_id)

    def _run_on(self, target: str, plan: ClusterPlan) -> RunCluster:
        port = plan.ports.of("node-manager")
        options = dataclasses.replace(self._name_cluster(target), data=plan.head.data)
        named = (("--nodes", options.nodes), ("--cluster", options.name), ("--data", options.data))
        told = " ".join(f"{option} {shlex.quote(text)}" for option, text in named if text)
        return RunCluster(
            name=plan.name,
            closed=plan.authentication,
            nodes=tuple(RayNodeAddress(name=one.name, address=one.address, port=port) for one in plan.members),
            words=options.target_and_options_text,
            options=f"--place {CLUSTER} --target {target} {told}".rstrip(),
        )

    def _head(self, app: App, target: str) -> _Head | None:
        if self._known is None and (self.is_data_disk_on_this_machine or not app.dry_run):
            with app.collecting_refusals_if_dry_run("cluster"):
                name = resolve_cluster_name(load_target(app.project, target).target, self._options.cluster)
                mount = load_image_plan(app.project, target).container.disk_mount
                self._known = _find_head(name, self._name_cluster(target), mount)
        return self._known

    def check_and_prepare_run_start(
        self, app: App, target: str, run_store: RunStore, need_disk_gib: float | None
    ) -> DockerRunStarter:
        if self._options.build_missing:
            raise SpecError(_("--build is for a run on one machine: `rlbox cluster up` brings a cluster its image"))
        image, head, gpus = load_image_plan(app.project, target), self._head(app, target), self._options.gpus
        image = dataclasses.replace(image, container=dataclasses.replace(image.container, network="host"))
        ready = DockerRunStarter(
            target=target,
            run_store=run_store,
            image=image,
            bytecode_dir_in_data=bytecode_dir_relative_to_data_disk(target, {}),
            print_status=app.print_status,
            gpus=gpus,
            backend_name=CLUSTER,
        )
        if head is None or not head.image:  # a dry run from elsewhere
            return dataclasses.replace(ready, will_start_on_this_machine=False)
        ensure_usable_data_dir_creating_default(app, run_store.data_dir, image.container, need_disk_gib)
        inspected: Mapping[str, Any] = {}
        with app.collecting_refusals_if_dry_run("image"):
            inspected = _require_same(connect_engine().find_image(head.image) or {}, image, head.plan)
        return dataclasses.replace(
            ready,
            bytecode_dir_in_data=bytecode_dir_relative_to_data_disk(target, inspected),
            gpu_access=require_devices_and_choose_gpus(app, image, gpus, inspected),
            image_ref=head.image,
            extra_env=ray_env(head.plan, head.plan.head, image.container.disk_mount),
            extra_labels={ID_LABEL: head.plan.id},
        )


def _find_head(name: str, options: ClusterOptions, mount: str) -> _Head:
    for row in connect_engine().list_all_containers_with_label(f"{CLUSTER_LABEL}={name}"):
        labels = row.get("Labels") or {}
        plan = own_plan(labels, name, os.getuid())
        if plan and labels.get(ROLE_LABEL) == HEAD and row.get("State") == "running":
            return _Head(plan=plan, image=str(row.get("ImageID", "")), folder=_ray_directory(plan, mount))
    raise MachineError(
        _("no head of cluster {name} runs here: `rlbox cluster up {words}` starts one").format(
            name=name, words=options.target_and_options_text
        )
    )


def _require_same(found: Mapping[str, Any], image: Any, plan: ClusterPlan) -> Mapping[str, Any]:
    if why := find_image_outdated_reason(image, dict(found)):
        raise EngineError(
            _(
                "cluster {plan} was started with an image of {target} that is out of date ({why}): take it "
                "down, build the image, and start it again"
            ).format(plan=plan.name, target=plan.target, why=why)
        )
    return found


# ---- beside the head, its nodes being watched from here meanwhile


def require_usable_cluster(app: App, options: ClusterOptions) -> ClusterPlan:
    with open_context(app, options) as context:
        return _require_usable(context).plan


def _ray_directory(plan: ClusterPlan, mount: str) -> str:
    return f"{mount}/{plan.directory_relative_to_disk(plan.head.name)}/{RAY_DIRECTORY}"


def _require_usable(context: ClusterContext) -> ExistingCluster:
    cluster = context.require_own_cluster()
    head = cluster.require_running_head()
    if cluster.probe.facts[head.name].engine.state != "ok":
        raise MachineError(
            _("Docker is not reachable on the head node, which must start the run's container"), where=head.name
        )
    status = query_ray_for_cluster_status(cluster)
    if not status.healthy:
        raise MachineError(
            _("cluster {plan} is not as it should be\n{table}").format(
                plan=cluster.plan.name, table=format_findings(status.failures)
            ),
            next_step=context.options.repair_hint_text,
        )
    return cluster


def _run_on_head(app: App, options: ClusterOptions, secrets: Mapping[str, Secret]) -> int:
    """Carry out this command line in a container beside the head, with this process's streams; return its exit code.

    What happens to nodes meanwhile is said, and is laid beside the evidence of a run that failed.
    """
    from rlbox.engine.remote_helper import HelperContainerSpec, run_helper_and_fetch_files

    parsed = click.get_current_context().params
    run_id = parsed.get("run") or create_run_id(str(parsed.get("name")))
    env = {name: secret.reveal() for name, secret in secrets.items()}
    env |= {} if parsed.get("run") else {_RUN: run_id}
    env[PROJECT_NAME_VARIABLE] = parse_image_tag_or_empty(load_image_plan(app.project, options.target).tag)[1]
    with open_context(app, options) as context:
        cluster = _require_usable(context)
        plan, head = cluster.plan, cluster.require_running_head()
        logs_command = format_run_command_on_head(plan, "logs", run_id)
        found = _("the run is on node {node}; from here: {command}").format(node=head.name, command=logs_command)
        app.print_status(found)
        helper = HelperContainerSpec(
            target=plan.target,
            image=cluster.instances[head.name].image,
            data_dir=plan.head.data,
            create_data_dir=False,
            rlbox_args=drop_options_and_their_values(click.get_current_context().find_root().obj, LOCAL_FILE_OPTIONS),
            env={**env, HEAD_VARIABLE: plan.name, "RLBOX_DATA": plan.head.data},
            terminal=sys.stdin.isatty() and sys.stdout.isatty(),
        )
        with contextlib.closing(NodeFailureMonitor(cluster)) as monitor:
            try:
                engine = head.engine_url
                tunnel = probe_remote_engine(engine, head.machine.engine_socket, head.run_shell)
                code = run_helper_and_fetch_files(tunnel, app.project, helper)
            except EngineError as error:
                raise MachineError(
                    monitor.stop_show_and_format_error_with_findings(error), where=head.name, next_step=logs_command
                ) from error
            if code:
                _write_evidence(app, head, run_id, cluster.instances, monitor)
            return code


def _write_evidence(app: App, head: Node, run: str, nodes: Iterable[str], monitor: NodeFailureMonitor) -> None:
    directory = _find_evidence_directory(head, run)
    if not directory:
        return
    failures = [one.as_json() for one in monitor.stop_probe_and_show_findings()]
    status = {
        "schema": 1,
        "failures": failures,
        "nodes": {name: {"answers": name not in monitor.silent_nodes} for name in nodes},
    }
    path, text = f"{directory}/{_STATUS_FILE}", json.dumps(status, indent=1) + "\n"
    try:
        head.call("write_private_file", disk=head.spec.data, path=path, text=text)
    except MachineError as error:
        app.print_status(_("evidence of the nodes was not written: {error}").format(error=error.what))
        return
    text = _("evidence of all nodes: {file} on {node}")
    app.print_status(text.format(file=f"{head.spec.data}/{path}", node=head.name))


def _find_evidence_directory(head: Node, run: str) -> str:
    """Return where, below the head's data disk, the evidence of the stage that failed is; empty where none is.

    `run` may be the beginning of its name that no other run has.
    """
    disk = head.spec.data
    with contextlib.suppress(RlboxError, ValueError, LookupError, TypeError, AttributeError):
        names = head.run_shell(f"ls {shlex.quote(disk)}/runs").split()
        (name,) = [run] if run in names else [name for name in names if name.startswith(run)]
        record = parse_untrusted_json(head.run_shell(f"cat {shlex.quote(disk)}/runs/{shlex.quote(name)}/run.json"))
        (stage, *__) = [stage for stage in record["stages"] if stage.get("state") == "failed"]
        return f"runs/{name}/{stage['directory']}/evidence"
    return ""
