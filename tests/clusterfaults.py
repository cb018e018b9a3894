"""What can be wrong with a node, a row a fault: planted in the facts of `b`, it alone is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clusterfacts import DISK, ENGINE, NEEDS, NO_ENGINE, PLACE, facts, gpu, plan, survey

from rlbox.amounts import GIB
from rlbox.cluster.checks import check_nodes
from rlbox.cluster.facts import GpuProcess, NodeGpus, NodePath, RayInstance
from rlbox.cluster.probe import ClusterProbe, ConnectionAttempt, Endpoint
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


def ended(name: str, status: str = "exited") -> RayInstance:
    labels = {"rlbox.cluster": name, "rlbox.cluster.maker": "bob@desk", "rlbox.target": "theirs"}
    return RayInstance(id="1", name=f"rlbox-{name}-1", image="i", labels=labels, status=status, exit_code=137)


def given() -> RayInstance:
    """The container of another's cluster of the same nodes, that runs and has a GPU."""
    theirs = plan(name="theirs", target="theirs", maker="bob@desk", members=(replace(plan().members[1], gpus=1),))
    labels = {"rlbox.cluster": "theirs", "rlbox.cluster.node": "b", "rlbox.cluster.plan": theirs.text()}
    return RayInstance(id="1", name="rlbox-theirs-1", image="i", labels=labels, status="running")


def path(**changes: Any) -> NodePath:
    return replace(NodePath(path="/models/m", there=True, files=3, bytes=9000, sum="s"), **changes)


TAKEN = GpuProcess(uuid="GPU-0", pid=77, used=GIB, command="python train.py", user="bob")
LOST = ConnectionAttempt(source="a", target="b", address="10.0.0.2", port=8110, said="Connection refused")
NO_SEAT = {"a": Endpoint(address="10.0.0.1", interface="ib0", mtu=1500)}
SIX = {**NO_SEAT, "b": Endpoint(address="fd00::2", interface="ib0", mtu=1500)}
SMALL = {**NO_SEAT, "b": Endpoint(address="10.0.0.2", interface="ib0", mtu=1400)}

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
    "engine fails": (engine(state="broken", said="500"), "engine-broken", "error", "500", "journalctl -u docker"),
    "old engine": (engine(version="19.3.1"), "engine-old", "error", "19.3.1, 20.10", "install a newer one"),
    "rootless engine": (
        engine(security=("name=rootless",)),
        "engine-rootless",
        "error",
        "docker.sock",
        "the machine's own engine",
    ),
    "no GPUs for containers": (engine(runtimes=("runc",)), "gpu-runtime", "warning", "runc", "nvidia-ctk runtime"),
    "a GPU fell off": (gpus(gpu(0), said="unknown error"), "gpus-few", "error", "1 of 2: unknown error", "dmesg"),
    "other GPUs": (gpus(gpu(0, name="H20"), gpu(1, name="H20")), "gpu-other", "warning", "2 x H20", "hardware.gpu"),
    "small GPUs": (gpus(gpu(0), gpu(1, memory=40 * GIB)), "gpu-small", "error", "GPU 1: 40.0 GiB", "gpu_memory_gib"),
    "an ill GPU": (gpus(gpu(0), gpu(1, errors=3)), "gpu-ill", "error", "GPU 1", "reset or replaced"),
    "a taken GPU": (
        gpus(gpu(0, used=70 * GIB), gpu(1), holders=(TAKEN,)),
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
    "no inodes": (disk(inodes=12), "disk-full", "error", "12 free", "small files"),
    "the system's disk": (disk(root=True), "disk-is-root", "warning", "536.9 GB free", "mount a disk there"),
    "an open disk": (disk(mode=0o777), "disk-open", "warning", "mode 777", "chmod 700 /data"),
    "little memory": (survey(facts("b", memory=64 * GIB)), "memory-small", "error", "68.7 GB", "hardware.memory_gib"),
    "few cores": (survey(facts("b", cores=8)), "cores-few", "warning", "8, 16 needed", "hardware.cores"),
    "few files": (survey(facts("b", nofile=1024)), "files-few", "warning", "1024", "limits.conf"),
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
    "not reached": (
        survey(endpoints=NO_SEAT, attempts=(replace(LOST, port=40000, said="No route to host"),)),
        "no-way",
        "error",
        "at 10.0.0.2: a: No route to host",
        "cluster.nodes with address",
    ),
    "IPv6 alone": (survey(endpoints=SIX), "ipv6-alone", "error", "fd00::2", "addresses of IPv4"),
    "a firewall": (
        survey(attempts=(LOST,)),
        "ports-closed",
        "error",
        "8110: Connection refused",
        "8100-8119, 10002-11001, 32",
    ),
    "a taken port": (
        survey(taken={"b": {8110: "process 5 (nginx)"}}),
        "ports-taken",
        "error",
        "8110 by process 5 (nginx)",
        "--port N",
    ),
    "small packets": (
        survey(endpoints=SMALL),
        "mtu-differs",
        "warning",
        "ib0: MTU 1400, there 1500",
        "ip link set ib0 mtu",
    ),
    "no model": (
        survey(facts("b", paths=(path(there=False, said="No such file or directory"),)), facts={}),
        "path-missing",
        "error",
        "No such file",
        "copy it there",
    ),
    "another model": (
        survey(facts("b", paths=(path(files=2, bytes=8000, sum="t"),))),
        "path-differs",
        "error",
        "2 files of 8.0 kB, there 3 of 9.0 kB",
        "copy it anew from a",
    ),
    "remains of others": (
        survey(facts("b", clusters=(ended("theirs"), ended("pair"), ended("live", "running")))),
        "remains",
        "warning",
        "rlbox-theirs-1 (of bob@desk, exited with 137)",
        "rlbox cluster down theirs --name theirs, if it is yours",
    ),
}


def on_nodes(planted: ClusterProbe) -> ClusterProbe:
    """Return the survey with the model on `a`, and on `b` where nothing else is said of it."""
    rows = {**survey().facts, **planted.facts}
    if planted.facts == {}:  # a row that is about the model has none but that on b
        rows["b"] = FAULTS_B["no model"]
    rows["a"] = replace(rows["a"], paths=(path(),))
    if not rows["b"].paths:
        rows["b"] = replace(rows["b"], paths=(path(),))
    return replace(planted, facts=rows)


def found(planted: ClusterProbe) -> tuple[Finding, ...]:
    """Judge what is planted."""
    return check_nodes(on_nodes(planted), NEEDS)


FAULTS_B = {"no model": facts("b", paths=(path(there=False, said="No such file or directory"),))}
