"""What can be wrong with a node, a row a fault: planted in the facts of `b`, it alone is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clusterfacts import DISK, ENGINE, NEEDS, NO_ENGINE, PLACE, facts, gpu, plan, survey

from rlbox.amounts import GIB
from rlbox.cluster.checks import check_nodes
from rlbox.cluster.facts import InterfaceAddress, NodeGpus, RayInstance
from rlbox.cluster.probe import ClusterProbe, ConnectionAttempt
from rlbox.findings import Finding


def gpus(*cards: Any, **more: Any) -> ClusterProbe:
    return survey(facts("b", gpu=NodeGpus(gpus=cards, **more)))


def engine(**changes: Any) -> ClusterProbe:
    return survey(facts("b", engine=replace(ENGINE, **changes)))


def disk(**changes: Any) -> ClusterProbe:
    return survey(facts("b", disk=replace(DISK, **changes)))


def placed(**changes: Any) -> ClusterProbe:
    """`b` has no engine, and the target was brought to it otherwise."""
    return survey(facts("b", engine=NO_ENGINE, installation=replace(PLACE, **changes)))


def given() -> RayInstance:
    """The container of another's cluster of the same nodes, that runs and has a GPU."""
    theirs = plan(name="theirs", target="theirs", maker="bob@desk", members=(replace(plan().members[1], gpus=1),))
    labels = {"rlbox.cluster": "theirs", "rlbox.cluster.node": "b", "rlbox.cluster.plan": theirs.text()}
    return RayInstance(id="1", name="rlbox-theirs-1", image="i", labels=labels, status="running")


LOST = ConnectionAttempt(source="a", target="b", address="10.0.0.2", port=8110, said="Connection refused")
HEAD = {"a": InterfaceAddress(address="10.0.0.1", interface="ib0", mtu=1500)}
SMALL = {**HEAD, "b": InterfaceAddress(address="10.0.0.2", interface="ib0", mtu=1400)}

# what is planted in `b`: the finding's id and level, what is seen, what is said to do
FAULTS: dict[str, tuple[ClusterProbe, str, str, str, str]] = {
    "no engine": (engine(state="absent"), "engine-absent", "error", "/var/run/docker.sock", "rlbox engine up"),
    "a place that was never whole": (
        placed(whole=False),
        "place-torn",
        "error",
        "/opt/rlbox",
        "--data /data, there",
    ),
    "a place of another lock": (placed(lock="2" * 64), "place-differs", "error", "222222222222, here", "bring this"),
    "a place of another disk": (
        placed(data="/other"),
        "place-disk",
        "error",
        "/other",
        "--data /other, or rlbox apply",
    ),
    "engine of others": (
        engine(state="denied", said="Permission denied"),
        "engine-denied",
        "error",
        "Permission denied",
        "usermod -aG docker ann",
    ),
    "engine hangs": (engine(state="silent", said="timed out"), "engine-silent", "error", "timed out", "restart docker"),
    "old engine": (engine(version="19.3.1"), "engine-old", "error", "19.3.1, 23", "install a newer one"),
    "rootless engine": (
        engine(security=("name=rootless",)),
        "engine-rootless",
        "error",
        "docker.sock",
        "the machine's own engine",
    ),
    "no GPUs for containers": (engine(runtimes=("runc",)), "gpu-runtime", "warning", "runc", "nvidia-ctk runtime"),
    "a GPU fell off": (gpus(gpu(0), said="unknown error"), "gpus-few", "error", "1 of 2: unknown error", "dmesg"),
    "small GPUs": (gpus(gpu(0), gpu(1, memory=40 * GIB)), "gpu-small", "error", "GPU 1: 40.0 GiB", "gpu_memory_gib"),
    "an ill GPU": (gpus(gpu(0), gpu(1, errors=3)), "gpu-ill", "error", "GPU 1", "reset or replaced"),
    "a taken GPU": (
        gpus(gpu(0, used=70 * GIB, users=("bob (77, python train.py)",)), gpu(1)),
        "gpus-taken",
        "error",
        "GPU 0, 70.0 GiB: bob (77, python train.py)",
        "ask their owner",
    ),
    "GPUs of another cluster": (
        survey(facts("b", clusters=(given(),))),
        "gpus-given",
        "error",
        "theirs of",
        "wait, take another node, or end that one if it is yours: rlbox cluster down theirs --name theirs",
    ),
    "another driver": (
        gpus(gpu(0, driver="535.1"), gpu(1, driver="535.1")),
        "drivers-differ",
        "warning",
        "535.1, there 570.86",
        "one driver",
    ),
    "no disk": (disk(there=False, said="No such file or directory"), "disk-missing", "error", "No such file", "--data"),
    "a disk of others": (disk(writable=False, uid=0), "disk-denied", "error", "mode 700, owner 0", "chown ann /data"),
    "a full disk": (disk(free=GIB), "disk-full", "error", "1.1 GB free, 53.7 GB needed", "free space there"),
    "an open disk": (disk(mode=0o777), "disk-open", "warning", "mode 777", "chmod 700 /data"),
    "little memory": (survey(facts("b", memory=64 * GIB)), "memory-small", "error", "68.7 GB", "hardware.memory_gib"),
    "a clock an hour ahead": (
        survey(offsets={"a": 0.0, "b": 3600.0}),
        "clock-skew",
        "error",
        "1 h 00 min ahead of them",
        "set-ntp",
    ),
    "a clock a bit ahead": (
        survey(offsets={"a": 0.0, "b": 2.0}),
        "clock-skew",
        "warning",
        "2 s ahead of them",
        "set-ntp",
    ),
    "no address": (survey(addresses=HEAD), "no-address", "error", "", "cluster.nodes with address"),
    "no model": (survey(facts("b", paths=())), "path-missing", "error", "", "copy it there"),
    "a firewall": (
        survey(attempts=(LOST,)),
        "ports-closed",
        "error",
        "10.0.0.2:8110 Connection refused",
        "8100-8119, 10002-11001, net",
    ),
    "a taken port": (
        survey(taken={"b": {8110: "process 5 (nginx)"}}),
        "ports-taken",
        "error",
        "8110 by process 5 (nginx)",
        "--port N",
    ),
    "small packets": (
        survey(addresses=SMALL),
        "mtu-differs",
        "warning",
        "ib0: MTU 1400, there 1500",
        "ip link set ib0 mtu",
    ),
}


def found(planted: ClusterProbe) -> tuple[Finding, ...]:
    return check_nodes(planted, NEEDS)
