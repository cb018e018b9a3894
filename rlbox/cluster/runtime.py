"""How a node runs Ray: in a container of its engine or as processes of its user; its command line and environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from packaging.version import InvalidVersion, Version

from rlbox.cluster.connection import Node
from rlbox.cluster.plan import (
    CLUSTER_LABEL,
    ID_LABEL,
    MAKER_LABEL,
    NODE_LABEL,
    PLAN_LABEL,
    ROLE_LABEL,
    ClusterMember,
    ClusterPlan,
)
from rlbox.engine.container import TARGET_LABEL, ContainerPlan, plan_container
from rlbox.engine.gpu_access import NO_GPUS, GpuAccess, choose_gpu_access, parse_gpus_option, probe_gpu_support
from rlbox.provision.shell_environment import get_inherited_names_prefixes_path
from rlbox.values import OWN, VENV, Mount

if TYPE_CHECKING:
    from rlbox.engine.container import ContainerDefaults


HEAD: Literal["head"] = "head"
WORKER: Literal["worker"] = "worker"
TOKEN_FILE = "auth_token"  # noqa: S105
RAY_DIRECTORY = "ray"
"""Below a cluster's directory on the data disk: a container has it as /tmp/ray, where Ray looks by default."""

RAY_TEMP = "/tmp/ray"  # noqa: S108
_TOKENS_SINCE = Version("2.52")
"""Source: Ray's documentation of token authentication; 2.43 was seen to take a job of anybody."""
_SLOW_START_S = 300
INSIDE = Path(__file__).with_name("inside")


def has_tokens(version: str) -> bool:
    """Return whether a version of Ray asks for a token; one that is not known does not."""
    try:
        return Version(version) >= _TOKENS_SINCE
    except InvalidVersion:
        return False


def role_of(plan: ClusterPlan, member: ClusterMember) -> Literal["head", "worker"]:
    return HEAD if member == plan.head else WORKER


def container_name(plan: ClusterPlan) -> str:
    """Return the name of the cluster's container on each node."""
    return f"rlbox-{plan.name}-{plan.id}"


def image_ray_start_argv(plan: ClusterPlan, member: ClusterMember) -> tuple[str, ...]:
    """Return the command line that starts Ray on a node, in its image; the fixes add the rest."""
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


def ray_env(plan: ClusterPlan, member: ClusterMember, mount: str) -> dict[str, str]:
    """Return the environment of Ray on a node that sees its data disk at `mount`; no secret is in it."""
    env = {
        "RLBOX_CLUSTER": plan.name,
        "RLBOX_RAY_PORT": str(plan.ports.base),
        "AUTOSCALER_METRIC_PORT": str(plan.ports.of("autoscaler-metrics")),
        "DASHBOARD_METRIC_PORT": str(plan.ports.of("dashboard-metrics")),
        "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": str(_SLOW_START_S),
    }
    if member.interface:
        env |= {"GLOO_SOCKET_IFNAME": member.interface, "NCCL_SOCKET_IFNAME": f"={member.interface}"}
    path = f"{mount}/{plan.directory_relative_to_disk(member.name)}/{TOKEN_FILE}"
    env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": path}
    return env


def plan_member_container(
    plan: ClusterPlan,
    member: ClusterMember,
    limits: ContainerDefaults,
    *,
    image: str,
    caller_uid_gid: str,
    gpus: GpuAccess = NO_GPUS,
) -> ContainerPlan:
    """Return the container of a node; `image` as its engine names it, `caller_uid_gid` is `uid:gid` there."""
    directory = f"{member.data}/{plan.directory_relative_to_disk(member.name)}/{RAY_DIRECTORY}"
    return plan_container(
        image,
        dataclasses.replace(limits, network="host"),
        name=container_name(plan),
        argv=image_ray_start_argv(plan, member),
        env=ray_env(plan, member, limits.mount),
        labels=create_labels(plan, member),
        data_dir=member.data,
        caller_uid_gid=caller_uid_gid,
        gpus=gpus,
        mounts=(Mount(source=directory, target=RAY_TEMP),),
    )


def create_labels(plan: ClusterPlan, member: ClusterMember) -> dict[str, str]:
    return {
        TARGET_LABEL: plan.target,
        CLUSTER_LABEL: plan.name,
        ID_LABEL: plan.id,
        NODE_LABEL: member.name,
        ROLE_LABEL: role_of(plan, member),
        PLAN_LABEL: plan.to_json_line(),
        MAKER_LABEL: plan.maker,
    }


def python_path(member: ClusterMember) -> str:
    """Return the interpreter of the stack, as programs on a node name it."""
    return f"{member.place.removesuffix(OWN)}{VENV}/bin/python"


@dataclass(frozen=True, kw_only=True)
class ContainerRuntime:
    """Ray in a container of the node's engine."""

    node: Node
    plan: ClusterPlan
    member: ClusterMember

    def start_ray(self, limits: ContainerDefaults, image: str) -> None:
        engine, gpus = self.node.engine(), NO_GPUS
        if self.member.gpus:
            offer = probe_gpu_support(engine.info(), self.node.name, is_local=self.node.spec.is_local)
            gpus = choose_gpu_access(parse_gpus_option(str(self.member.gpus), self.member.gpus), offer)
        caller = f"{self.node.machine['uid']}:{self.node.machine['gid']}"
        engine.start_container(
            plan_member_container(self.plan, self.member, limits, image=image, caller_uid_gid=caller, gpus=gpus)
        )

    def run_python(self, args: tuple[str, ...]) -> Iterator[str]:
        """Run the stack's interpreter beside it; yield the lines that it prints."""
        return self.node.engine().stream_exec_stdout_ignoring_exit(
            container_name(self.plan), (python_path(self.member), *args)
        )

    def read_log_tail(self, container_id: str, lines: int) -> str:
        return self.node.engine().read_log_tail(container_id, lines)

    def data_disk_inside(self, container_mount: str) -> str:
        """Return where its programs see the node's data disk, which containers mount at `container_mount`."""
        return container_mount


@dataclass(frozen=True, kw_only=True)
class ProcessRuntime:
    """Ray as processes of the node's user, started by the entrypoint of the installed target."""

    node: Node
    plan: ClusterPlan
    member: ClusterMember

    def _program(self, *argv: str) -> dict[str, Any]:
        return {
            "own": self.member.place,
            "argv": ["sh", f"{self.member.place}/libexec/entrypoint.sh", *argv],
            "env": ray_env(self.plan, self.member, self.member.data),
            **get_inherited_names_prefixes_path(),
        }

    def start_ray(self, ignored_limits: ContainerDefaults, recorded_image: str) -> None:
        self.node.call(
            "start-processes",
            disk=self.member.data,
            folder=self.plan.directory_relative_to_disk(self.member.name),
            container=container_name(self.plan),
            image=recorded_image,
            labels=create_labels(self.plan, self.member),
            **self._program(*image_ray_start_argv(self.plan, self.member)),
        )

    def run_python(self, args: tuple[str, ...]) -> Iterator[str]:
        program = self._program(python_path(self.member), *args)
        with closing(self.node.stream("execute", as_text_lines=True, **program)) as stream:
            for row in stream:
                yield str(row["line"])

    def read_log_tail(self, record_id: str, lines: int) -> str:
        row = self.node.call("process-output", disk=self.member.data, id=record_id, lines=lines)
        return str(row["text"])

    def data_disk_inside(self, container_mount: str) -> str:
        return self.member.data


RayRuntime = ContainerRuntime | ProcessRuntime


def select_runtime(node: Node, plan: ClusterPlan, member: ClusterMember) -> RayRuntime:
    return (ProcessRuntime if member.is_inplace else ContainerRuntime)(node=node, plan=plan, member=member)


def run_packaged_script(runtime: RayRuntime, file_name: str, *arguments: str) -> Iterator[str]:
    """Run a script of `inside/` by the stack's interpreter; yield the lines that it prints."""
    return runtime.run_python(("-I", "-c", (INSIDE / file_name).read_text("utf-8"), *arguments))
