"""How a node runs Ray, in a container of its engine or as processes of its user, and what Ray says of its nodes."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from packaging.version import InvalidVersion, Version

from rlbox.cluster.node.facts import MachineFacts, RayInstance
from rlbox.cluster.nodes import Node
from rlbox.cluster.plan import (
    CLUSTER_LABEL,
    ID_LABEL,
    LOCAL,
    MACHINE_LABEL,
    NODE_LABEL,
    PLAN_LABEL,
    ROLE_LABEL,
    ClusterMember,
    ClusterPlan,
)
from rlbox.engine.container import TARGET_LABEL, ContainerPlan, plan_container
from rlbox.engine.gpu_access import (
    NO_GPUS,
    GpuAccess,
    choose_gpu_access,
    detect_gpu_support_from_engine_info,
    parse_gpus_option,
)
from rlbox.errors import EngineError, MachineError
from rlbox.i18n import _
from rlbox.provision.shell_environment import INHERITED_NAME, SYSTEM_PATH
from rlbox.system.json_files import parse_valid_json_objects
from rlbox.values import OWN, VENV, Mount

if TYPE_CHECKING:
    from rlbox.engine.container import ContainerDefaults


HEAD, WORKER = _("head"), _("worker")
TOKEN_FILE = "auth_token"  # noqa: S105
RAY_DIRECTORY = "ray"
"""Below a cluster's directory on the data disk: a container has it as /tmp/ray, where Ray looks by default."""

RAY_TEMP = "/tmp/ray"  # noqa: S108
_TOKENS_SINCE = Version("2.52")
"""Source: Ray's documentation of token authentication; 2.43 was seen to take a job of anybody."""
_SLOW_START_S = 300
_STACK_CALL_S = 400.0
"""A call ends itself before."""


def has_tokens(version: str) -> bool:
    try:
        return Version(version) >= _TOKENS_SINCE
    except InvalidVersion:
        return False


def role_of(plan: ClusterPlan, member: ClusterMember) -> str:
    return HEAD if member == plan.head else WORKER


def container_name(plan: ClusterPlan) -> str:
    return f"rlbox-{plan.name}-{plan.id}"


def ray_start_program_argv(plan: ClusterPlan, member: ClusterMember) -> tuple[str, ...]:
    first, last = plan.ports.worker_range
    common = (
        f"--node-ip-address={member.address}",
        f"--node-name={member.name}",
        f"--min-worker-port={first}",
        f"--max-worker-port={last}",
        f"--num-gpus={member.gpus}",
        "--disable-usage-stats",
    )
    if role_of(plan, member) == WORKER:
        return ("ray-start", WORKER, f"--address={plan.head.address}:{plan.ports.of('gcs')}", *common)
    return ("ray-start", HEAD, "--dashboard-host=127.0.0.1", *common)


def ray_env(plan: ClusterPlan, member: ClusterMember, disk_mount: str) -> dict[str, str]:
    """Return the environment of Ray on a node that sees its data disk at `disk_mount`; no secret is in it."""
    env = {
        "RLBOX_CLUSTER": plan.name,
        "RLBOX_RAY_PORT": str(plan.ports.base),
        "AUTOSCALER_METRIC_PORT": str(plan.ports.of("autoscaler-metrics")),
        "DASHBOARD_METRIC_PORT": str(plan.ports.of("dashboard-metrics")),
        "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": str(_SLOW_START_S),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": f"{disk_mount}/{plan.directory_relative_to_disk(member.name)}/{TOKEN_FILE}",
    }
    if member.interface:
        env |= {"GLOO_SOCKET_IFNAME": member.interface, "NCCL_SOCKET_IFNAME": f"={member.interface}"}
    return env


def plan_member_container(
    plan: ClusterPlan,
    member: ClusterMember,
    limits: ContainerDefaults,
    *,
    image: str,
    machine: MachineFacts,
    gpus: GpuAccess = NO_GPUS,
) -> ContainerPlan:
    """Return the container of a node; `image` as its engine names it."""
    directory = f"{member.data}/{plan.directory_relative_to_disk(member.name)}/{RAY_DIRECTORY}"
    return plan_container(
        image,
        dataclasses.replace(limits, network="host"),
        name=container_name(plan),
        argv=ray_start_program_argv(plan, member),
        env=ray_env(plan, member, limits.disk_mount),
        labels=create_labels(plan, member, machine.identity_until_restart),
        data_dir=member.data,
        caller_uid_gid=f"{machine.uid}:{machine.gid}",
        gpus=gpus,
        mounts=(Mount(source=directory, target=RAY_TEMP),),
    )


def create_labels(plan: ClusterPlan, member: ClusterMember, machine_identity: str) -> dict[str, str]:
    return {
        MACHINE_LABEL: machine_identity,
        TARGET_LABEL: plan.target,
        CLUSTER_LABEL: plan.name,
        ID_LABEL: plan.id,
        NODE_LABEL: member.name,
        ROLE_LABEL: role_of(plan, member),
        PLAN_LABEL: plan.to_json_line(),
    }


# ---- on a node


def start_ray(node: Node, plan: ClusterPlan, limits: ContainerDefaults, image: str) -> None:
    member = plan.members_by_name[node.name]
    if member.is_inplace:
        node.call(
            "start_ray_get_dir",
            disk=member.data,
            cluster_directory=plan.directory_relative_to_disk(member.name),
            program=_describe_program(plan, member, ray_start_program_argv(plan, member)),
            description={
                "name": container_name(plan),
                "image": image,
                "labels": create_labels(plan, member, node.machine.identity_until_restart),
            },
        )
        return
    engine, gpus = node.connect_docker_engine(), NO_GPUS
    if member.gpus:
        offer = detect_gpu_support_from_engine_info(engine.info(), node.name, is_local=node.name == LOCAL)
        gpus = choose_gpu_access(parse_gpus_option(str(member.gpus), member.gpus), offer)
    spec = plan_member_container(plan, member, limits, image=image, machine=node.machine, gpus=gpus)
    engine.create_and_start_container_and_network(spec)


def stop_and_remove_ray(node: Node, instance: RayInstance, grace_s: int = 0) -> None:
    if instance.is_inplace:
        node.call("stop_and_remove_processes", directory=instance.id, grace_s=grace_s)
        return
    if grace_s:
        node.connect_docker_engine().stop_container(instance.id, grace_s)
    node.connect_docker_engine().remove_container_and_network(instance.id)


def read_log_tail(node: Node, instance: RayInstance, lines: int) -> str:
    if instance.is_inplace:
        return node.run_shell(f"tail -n {lines} {shlex.quote(instance.id)}/log")
    return node.connect_docker_engine().read_log(instance.id, lines) or ""


def python_path(member: ClusterMember) -> str:
    return f"{member.place.removesuffix(OWN)}{VENV}/bin/python"


def ask_in_stack(node: Node, plan: ClusterPlan, call: str, **arguments: str | int) -> dict[str, Any]:
    """Have the stack's interpreter beside Ray run a call of `in_stack.py`; `MachineError` where that tells an error."""
    member = plan.members_by_name[node.name]
    text = (Path(__file__).parent / "node/in_stack.py").read_text("utf-8")
    argv = (python_path(member), "-I", "-c", text, json.dumps({"call": call, **arguments}))
    try:
        if member.is_inplace:
            program = _describe_program(plan, member, argv)
            lines = str(node.call("run_program_ignoring_exit", _STACK_CALL_S, program=program)).splitlines()
        else:
            lines = list(node.connect_docker_engine().stream_exec_stdout_ignoring_exit(container_name(plan), argv))
    except EngineError as error:
        raise MachineError(error.what, where=node.name, next_step=error.next_step) from error
    *__, row = {"error": "Ray does not run there, or does not answer in time"}, *parse_valid_json_objects(lines)
    if "error" in row:
        raise MachineError(str(row["error"]), where=node.name)
    return row


def _describe_program(plan: ClusterPlan, member: ClusterMember, argv: tuple[str, ...]) -> dict[str, Any]:
    return {
        "argv": ["sh", f"{member.place}/libexec/entrypoint.sh", *argv],
        "inherited_name": INHERITED_NAME.pattern,
        "variables": {"PATH": SYSTEM_PATH, **ray_env(plan, member, member.data)},
    }


# ---- what Ray says


class RayNode(NamedTuple):
    """A node as Ray knows it, a new one with each start; `free` and `total` are resources."""

    id: str
    name: str
    alive: bool
    total: Mapping[str, float]
    free: Mapping[str, float]
    death_reason: str = ""


class RayState(NamedTuple):
    nodes: tuple[RayNode, ...] = ()
    error: str = ""

    def find_alive_node(self, name: str) -> RayNode | None:
        return next((node for node in self.nodes if node.name == name and node.alive), None)


def query_ray_nodes_or_error(head: Node, plan: ClusterPlan) -> RayState:
    try:
        rows = ask_in_stack(head, plan, "nodes", gcs=f"{plan.head.address}:{plan.ports.of('gcs')}")["nodes"]
    except MachineError as error:
        return RayState(error=error.what)
    return RayState(nodes=tuple(RayNode(**row) for row in rows))


def find_member_faults(plan: ClusterPlan, state: RayState, stale_ray_node_ids: Collection[str] = ()) -> dict[str, str]:
    """Return the nodes of a plan that are not as they should be, each with what is missing.

    `stale_ray_node_ids` are ids of nodes that were ended: Ray calls one alive for half a minute, and gives it work.
    """
    missing = {}
    for member in plan.members:
        lives = [node for node in state.nodes if node.name == member.name]
        known = [node for node in lives if node.id not in stale_ray_node_ids]
        alive = next((node for node in known if node.alive), None)
        if alive is None:
            reason = known[-1].death_reason or _("it ended") if known else ""
            missing[member.name] = _("Ray lost it: {reason}").format(reason=reason) if known else _("it has not joined")
        elif alive.total.get("GPU", 0) < member.gpus:
            missing[member.name] = _("{n:g} of {gpus} GPUs").format(n=alive.total.get("GPU", 0), gpus=member.gpus)
        elif any(node.alive for node in lives if node not in known):
            missing[member.name] = _("Ray still counts the processes that ended there")
    return missing
