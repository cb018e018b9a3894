"""What is wrong with nodes, a row a fault: planted in the facts of one node, it alone is found, with what was seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from clusterfacts import DISK, ENGINE, NO_ENGINE, PATHS, PLACE, PORTS, context, facts, gpu, plan, survey

from rlbox.amounts import GIB
from rlbox.cluster.checks import check_nodes, format_findings
from rlbox.cluster.node.facts import InterfaceAddress, RayInstance
from rlbox.cluster.nodes import ClusterProbe, ConnectionAttempt

WARNINGS = ("gpu-runtime", "mtu-differs")


def gpus(*cards: Any, error: str = "") -> ClusterProbe:
    return survey(facts("b", gpus=list(cards), gpu_error=error))


def engine(**changes: Any) -> ClusterProbe:
    return survey(facts("b", engine=ENGINE._replace(**changes)))


def disk(**changes: Any) -> ClusterProbe:
    return survey(facts("b", disk=DISK._replace(**changes)))


def placed(**changes: Any) -> ClusterProbe:
    """`b` has no engine, and the target was brought to it otherwise."""
    return survey(facts("b", engine=NO_ENGINE, installation=PLACE._replace(**changes)))


def given() -> RayInstance:
    """The container of another's cluster of the same nodes, that runs and has a GPU."""
    theirs = plan(name="theirs", target="theirs", maker="bob@desk", members=(replace(plan().members[1], gpus=1),))
    labels = {"rlbox.cluster": "theirs", "rlbox.cluster.node": "b", "rlbox.cluster.plan": theirs.to_json_line()}
    return RayInstance(id="1", name="rlbox-theirs-1", image="i", labels=labels, status="running")


LOST = ConnectionAttempt("a", "b", "10.0.0.2", 8110, "Connection refused")
HEAD = {"a": InterfaceAddress(address="10.0.0.1", interface="ib0", mtu=1500)}
SMALL = {**HEAD, "b": InterfaceAddress(address="10.0.0.2", interface="ib0", mtu=1400)}
USED = gpus(gpu(0, used_bytes=70 * GIB, users=("bob (77, python train.py)",)), gpu(1))


@pytest.mark.parametrize(
    ("planted", "id_", "seen"),
    [
        (engine(state="absent", error="/var/run/docker.sock"), "engine-absent", "/var/run/docker.sock"),
        (engine(state="denied", error="Permission denied"), "engine-denied", "Permission denied"),
        (engine(state="silent", error="timed out"), "engine-silent", "timed out"),
        (engine(version="19.3.1"), "engine-old", "19.3.1, 20.10"),
        (engine(security=("name=rootless",)), "engine-rootless", "docker.sock"),
        (placed(is_complete=False), "place-missing", "/opt/rlbox"),
        (placed(lock_checksum="2" * 64), "place-differs", "222222222222, here"),
        (placed(data_disk="/other"), "place-disk", "/other"),
        (engine(runtimes=("runc",)), "gpu-runtime", "runc"),
        (gpus(gpu(0), error="unknown error"), "gpus-few", "1 of 2: unknown error"),
        (gpus(gpu(0), gpu(1, memory_bytes=40 * GIB)), "gpu-small", "GPU 1: 40.0 GiB"),
        (gpus(gpu(0), gpu(1, uncorrected_errors=3)), "gpu-ill", "GPU 1"),
        (USED, "gpus-taken", "GPU 0, 70.0 GiB: bob (77, python train.py)"),
        (survey(facts("b", clusters=[given()])), "gpus-given", "theirs of"),
        (disk(there=False, error="No such file or directory"), "disk-missing", "No such file"),
        (disk(writable=False), "disk-denied", ""),
        (disk(free=GIB), "disk-full", "1.1 GB free, 53.7 GB needed"),
        (survey(facts("b", machine=facts("b").machine._replace(memory=64 * GIB))), "memory-small", "68.7 GB"),
        (survey(clock_offsets_s={"a": 0.0, "b": 3600.0}), "clock-skew", "1 h 00 min ahead of them"),
        (survey(addresses=HEAD), "no-address", ""),
        (survey(facts("b", existing_paths=())), "path-missing", ""),
        (survey(connection_attempts=(LOST,)), "ports-closed", "10.0.0.2:8110 Connection refused"),
        (survey(taken_ports={"b": {8110: "process 5 (nginx)"}}), "ports-taken", "8110 by process 5 (nginx)"),
        (survey(addresses=SMALL), "mtu-differs", "ib0: MTU 1400, there 1500"),
    ],
)
def test_planted_fault_is_found_and_no_other(planted: ClusterProbe, id_: str, seen: str) -> None:
    (one,) = check_nodes(context(), planted, PATHS)
    assert (one.id, one.where.partition(":")[0], one.level == "warning") == (id_, "b", id_ in WARNINGS)
    assert seen in one.seen, one.seen
    assert one.remedy


def test_remedies_name_what_to_type() -> None:
    (closed,) = check_nodes(context(), survey(connection_attempts=(LOST,)), PATHS)
    assert f"{PORTS.base}-8119, 10002-11001" in closed.remedy
    (owned,) = check_nodes(context(), survey(facts("b", clusters=[given()])), PATHS)
    assert "rlbox cluster down theirs --name theirs" in owned.remedy
    (clock,) = check_nodes(context(), survey(clock_offsets_s={"a": 0.0, "b": 2.0}), PATHS)
    assert (clock.level, "set-ntp" in clock.remedy) == ("warning", True)


def test_sound_nodes_have_no_finding() -> None:
    assert check_nodes(context(), survey(), PATHS) == ()


def test_nodes_with_the_same_fault_share_a_row() -> None:
    both = survey(facts("b", engine=NO_ENGINE))
    rows = {"a": facts("a", engine=NO_ENGINE), "b": both.facts["b"]}
    text = format_findings(check_nodes(context(), replace(both, facts=rows)))
    assert [line.split("  ")[0] for line in text.splitlines()] == ["node", "a, b"]


def test_path_on_a_missing_disk_is_not_reported() -> None:
    planted = survey(facts("b", disk=DISK._replace(there=False), existing_paths=()))
    for path, ids in (("/data/m", ["disk-missing"]), ("/database/m", ["disk-missing", "path-missing"])):
        findings = check_nodes(context(), replace(planted, facts={"b": planted.facts["b"]}), [path])
        assert sorted(one.id for one in findings) == ids


def test_gpus_are_not_asked_where_the_target_has_none() -> None:
    assert check_nodes(context(gpus=0), survey(facts("b", gpus=[]))) == ()
