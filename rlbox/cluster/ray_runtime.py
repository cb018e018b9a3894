"""How a node runs Ray: in a container of its engine or as processes of its user, its command line and environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from packaging.version import InvalidVersion, Version

from rlbox.cluster.connection import ASK_S, NodeConnection
from rlbox.cluster.plan import (
    CALL_LABEL,
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
from rlbox.provision.shell_environment import get_inheritance_rule
from rlbox.values import OWN, VENV

if TYPE_CHECKING:
    from rlbox.engine.container import ContainerDefaults


HEAD, WORKER = "head", "worker"
TOKEN_FILE, RECORD_FILE = "auth_token", "cluster.json"
CERTIFICATE_FILES = ("ca.crt", "node.crt", "node.key")

_TOKENS = Version("2.52")
"""Source: Ray's documentation of token authentication; 2.43 was seen to take a job of anybody."""
_OWN_GRPC = Version("2.45")
"""Until then the dashboard listened on one more port, of the kernel's choice."""
_SLOW_START_S = 300
_HEAD_S = 30
_JOIN = Path(__file__).with_name("inside") / "join.py"


def has_tokens(version: str) -> bool:
    """Return whether a version of Ray asks for a token; one that is not known does not."""
    return _at_least(version, _TOKENS)


def _at_least(version: str, wanted: Version) -> bool:
    try:
        return Version(version) >= wanted
    except InvalidVersion:
        return False


def role_of(plan: ClusterPlan, member: ClusterMember) -> str:
    """Return what a node is: head or worker."""
    return HEAD if member == plan.head else WORKER


def container_name(plan: ClusterPlan) -> str:
    """Return the name of the cluster's container on each node."""
    return f"rlbox-{plan.name}-{plan.id}"


def ray_words(plan: ClusterPlan, member: ClusterMember) -> tuple[str, ...]:
    """Return the words that start Ray on a node, in its image; all else is the fixes' business."""
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
        gcs = plan.head.address, str(plan.ports.of("gcs"))
        patient = ("python", "-c", _JOIN.read_text("utf-8"), *gcs, str(_HEAD_S))
        return (*patient, "ray-start", WORKER, f"--address={':'.join(gcs)}", *common)
    inner = () if _at_least(plan.ray, _OWN_GRPC) else (f"--dashboard-grpc-port={plan.ports.of('dashboard-grpc')}",)
    return ("ray-start", HEAD, "--dashboard-host=127.0.0.1", *inner, *common)


def ray_env(plan: ClusterPlan, member: ClusterMember, mount: str) -> dict[str, str]:
    """Return the environment of Ray on a node that sees its data disk at `mount`; no secret is in it."""
    folder = f"{mount}/{plan.folder(member.name)}"
    env = {
        "RLBOX_CLUSTER": plan.name,
        "RLBOX_RAY_PORT": str(plan.ports.base),
        "AUTOSCALER_METRIC_PORT": str(plan.ports.of("autoscaler-metrics")),
        "DASHBOARD_METRIC_PORT": str(plan.ports.of("dashboard-metrics")),
        "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": str(_SLOW_START_S),
    }
    if member.interface:
        env |= {"GLOO_SOCKET_IFNAME": member.interface, "NCCL_SOCKET_IFNAME": f"={member.interface}"}
    match plan.closed:
        case "token":
            env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": f"{folder}/{TOKEN_FILE}"}
        case "tls":
            ca, own, key = (f"{folder}/{name}" for name in CERTIFICATE_FILES)
            env |= {"RAY_USE_TLS": "1", "RAY_TLS_CA_CERT": ca, "RAY_TLS_SERVER_CERT": own, "RAY_TLS_SERVER_KEY": key}
    return env


def member_container(
    plan: ClusterPlan,
    member: ClusterMember,
    limits: ContainerDefaults,
    *,
    image: str,
    caller: str,
    call: str,
    gpus: GpuAccess = NO_GPUS,
) -> ContainerPlan:
    """Return the container of a node.

    Parameters
    ----------
    image
        As that node's engine names it by its content.
    caller
        `uid:gid` of the user there.
    call
        Names the call that makes it, which is undone as a whole when it is cut.
    """
    return plan_container(
        image,
        dataclasses.replace(limits, network="host"),
        name=container_name(plan),
        argv=ray_words(plan, member),
        env=ray_env(plan, member, limits.mount),
        labels=_labels(plan, member, call),
        data_dir=member.data,
        caller_uid_gid=caller,
        gpus=gpus,
    )


def member_processes(plan: ClusterPlan, member: ClusterMember, *, lock: str, call: str) -> dict[str, Any]:
    """Return what a node's program is told to start Ray as processes, behind the entrypoint of the place there.

    Parameters
    ----------
    lock
        Checksum of the lock that the place was brought to.
    """
    return {
        "folder": plan.folder(member.name),
        "name": container_name(plan),
        "image": lock,
        "labels": _labels(plan, member, call),
        "call": call,
        **place_program(plan, member, ray_words(plan, member)),
    }


def place_program(plan: ClusterPlan, member: ClusterMember, words: tuple[str, ...]) -> dict[str, Any]:
    """Return a program of a place as a node's program is told it, with the environment of the node's Ray."""
    return {
        "own": member.place,
        "words": ["sh", f"{member.place}/libexec/entrypoint.sh", *words],
        "env": ray_env(plan, member, member.data),
        **get_inheritance_rule(),
    }


def python_of(member: ClusterMember) -> str:
    """Return the interpreter of the stack, as programs on a node name it."""
    return f"{member.place.removesuffix(OWN)}{VENV}/bin/python"


def _labels(plan: ClusterPlan, member: ClusterMember, call: str) -> dict[str, str]:
    return {
        TARGET_LABEL: plan.target,
        CLUSTER_LABEL: plan.name,
        ID_LABEL: plan.id,
        NODE_LABEL: member.name,
        ROLE_LABEL: role_of(plan, member),
        PLAN_LABEL: plan.text(),
        MAKER_LABEL: plan.maker,
        CALL_LABEL: call,
    }


@dataclass(frozen=True, kw_only=True)
class Started:
    """What is to be started: the plan, limits of its containers, and by node the image as its engine calls it.

    Of a node without an engine `images` has the checksum of the lock that its place was brought to.
    """

    plan: ClusterPlan
    limits: ContainerDefaults
    images: Mapping[str, str]
    callers: Mapping[str, str]


class RayRuntime(Protocol):
    """What has the Ray of one node."""

    def start(self, started: Started, call: str) -> None:
        """Start it; `call` names what is undone as a whole when it is cut."""

    def execute(self, words: tuple[str, ...]) -> Iterator[str]:
        """Run the stack's interpreter with `words` beside it; yield the lines that it prints."""

    def output(self, life: str, lines: int) -> str:
        """Return the last lines that a life of it wrote."""

    def disk(self, mount: str) -> str:
        """Return where its programs see the node's data disk, which containers mount at `mount`."""


@dataclass(frozen=True, kw_only=True)
class ContainerRuntime:
    """Ray in a container of the node's engine."""

    link: NodeConnection
    plan: ClusterPlan
    member: ClusterMember

    def start(self, started: Started, call: str) -> None:
        """As promised; with the GPUs that the node gives."""
        container = member_container(
            self.plan,
            self.member,
            started.limits,
            image=started.images[self.link.name],
            caller=started.callers[self.link.name],
            call=call,
            gpus=self._gpus(),
        )
        self.link.engine().start_container(container)

    def _gpus(self) -> GpuAccess:
        if not self.member.gpus:
            return NO_GPUS
        offer = probe_gpu_support(self.link.engine().info(), self.link.name, is_local=self.link.options.local)
        return choose_gpu_access(parse_gpus_option(str(self.member.gpus), self.member.gpus), offer)

    def execute(self, words: tuple[str, ...]) -> Iterator[str]:
        """As promised."""
        return self.link.engine().stream_exec_output(container_name(self.plan), (python_of(self.member), *words))

    def output(self, life: str, lines: int) -> str:
        """As promised."""
        return self.link.engine().read_log_tail(life, lines)

    def disk(self, mount: str) -> str:
        """As promised."""
        return mount


@dataclass(frozen=True, kw_only=True)
class ProcessRuntime:
    """Ray as processes of the node's user, in the place that the target was brought to there."""

    link: NodeConnection
    plan: ClusterPlan
    member: ClusterMember

    def start(self, started: Started, call: str) -> None:
        """As promised."""
        lock = started.images[self.link.name]
        self.link.ask("start-here", **member_processes(self.plan, self.member, lock=lock, call=call))

    def execute(self, words: tuple[str, ...]) -> Iterator[str]:
        """As promised."""
        program = place_program(self.plan, self.member, (python_of(self.member), *words))
        for part in self.link.start("execute-here", **program):
            yield str(part["line"])

    def output(self, life: str, lines: int) -> str:
        """As promised."""
        return str(self.link.ask("output-here", container=life, lines=lines)["text"])

    def disk(self, mount: str) -> str:
        """As promised."""
        return self.member.data


def create_runtime(link: NodeConnection, plan: ClusterPlan, member: ClusterMember) -> RayRuntime:
    """Return what has, or is to have, the Ray of a node."""
    return (ProcessRuntime if member.here else ContainerRuntime)(link=link, plan=plan, member=member)


def list_ray_processes(link: NodeConnection, plan: ClusterPlan, timeout_s: float = ASK_S) -> list[dict[str, Any]]:
    """Return what a node tells of its lives of Ray, as rows; of a node without an engine that is not asked for it."""
    member = plan.member(link.name)
    here = bool(member and member.here)
    return list(link.ask("containers", timeout_s=timeout_s, here=here)["containers"])
