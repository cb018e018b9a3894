"""Values of a cluster of two sound nodes, `a` the head and `b`; what a test plants is changed in them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from rlbox.amounts import GIB
from rlbox.cluster.node.facts import (
    DiskFacts,
    EngineFacts,
    Gpu,
    Installation,
    InterfaceAddress,
    MachineFacts,
    NodeFacts,
    RayInstance,
)
from rlbox.cluster.nodes import ClusterProbe, ExistingCluster, runs_ray_without_container
from rlbox.cluster.plan import ClusterMember, ClusterPlan, PortPlan
from rlbox.target.target import ClusterNode, Hardware

A800 = "NVIDIA A800-SXM4-80GB"
PORTS = PortPlan(base=8100, workers=10002)
PATHS = ("/models/m",)


def context(gpus: int = 2) -> Any:
    """Return as much of a context as checks ask for."""
    hardware = Hardware.model_construct(gpus=gpus, gpu=A800, gpu_memory_gib=80.0, memory_gib=100.0)
    disk = SimpleNamespace(need_gib=50.0, mount="/data")
    target = SimpleNamespace(hardware=hardware, disk=disk, name="mine")
    return SimpleNamespace(target=target, name="pair", image=SimpleNamespace(lock_checksum=""))


def gpu(number: int, **changes: Any) -> Gpu:
    """A GPU that nobody uses."""
    return Gpu(number=number, memory_bytes=80 * GIB, used_bytes=0)._replace(**changes)


ENGINE = EngineFacts(state="ok", version="26.1.5+dfsg1", runtimes=("nvidia",))
NO_ENGINE = EngineFacts("absent", "/var/run/docker.sock")
PLACE = Installation(directory="/opt/rlbox", lock_checksum="", data_disk="/data")
"""Of a target that has no lock: both sides have the same."""
DISK = DiskFacts(path="/data", there=True, free=500 * GIB, size=900 * GIB, writable=True)


def facts(name: str, **changes: Any) -> NodeFacts:
    """What a sound node says of itself."""
    address = {"a": "10.0.0.1", "b": "10.0.0.2"}[name]
    sound = NodeFacts(
        machine=MachineFacts(f"boot-{name}", 1000, 1000, "ann", 128 * GIB, "/var/run/docker.sock"),
        engine=ENGINE,
        gpus=[gpu(0), gpu(1)],
        gpu_error="",
        disk=DISK,
        addresses=[InterfaceAddress("ib0", address, 1500)],
        listening=[],
        clusters=[],
        installation=None,
        existing_paths=list(PATHS),
        own_clock_before_after_s=(0.0, 0.0),
    )
    return sound._replace(**changes)


def survey(b: NodeFacts | None = None, **changes: Any) -> ClusterProbe:
    """Return the survey of both; `b` is what the worker says."""
    addresses = {n: InterfaceAddress(address=f"10.0.0.{i}", interface="ib0", mtu=1500) for i, n in enumerate("ab", 1)}
    sound = ClusterProbe(
        facts={"a": facts("a"), "b": b or facts("b")},
        clock_offsets_s={"a": 0.0, "b": 0.0},
        addresses=addresses,
        ports=PORTS,
    )
    inplace = {
        name
        for name, one in sound.facts.items()
        if runs_ray_without_container(ClusterNode(name=name, data="/data"), one)
    }
    return replace(sound, **{"inplace_nodes": inplace, **changes})


def existing(watching: Any, instances: dict[str, RayInstance], **changes: Any) -> ExistingCluster:
    """Return a cluster as it is found; `watching` is the context."""
    return ExistingCluster(watching, survey(**changes), plan(), instances)


def plan(**changes: Any) -> ClusterPlan:
    """Return the plan of a cluster of both."""
    members = tuple(
        ClusterMember(name=n, data="/data", address=f"10.0.0.{i}", interface="ib0", gpus=2, uid=1000)
        for i, n in enumerate("ab", 1)
    )
    sound = ClusterPlan(
        id="0a1b2c3d",
        name="pair",
        target="mine",
        image_digest="sha256:" + "1" * 64,
        ray="2.60.0",
        members=members,
        ports=PORTS,
        maker="ann@desk",
        made="2026-11-25T10:00:00+00:00",
    )
    return replace(sound, **changes)
