"""What is wrong with nodes, a row a fault: planted in the facts of one node, it alone is found, with its way out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from clusterfacts import A800, DISK, ENGINE, NEEDS, facts, survey
from clusterfaults import FAULTS, found

from rlbox.cluster.checks import check_nodes, format_findings
from rlbox.cluster.facts import InterfaceAddress, NodeGpus, NodePath


def test_sound_nodes_have_no_finding() -> None:
    assert found(survey()) == ()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_no_other(name: str) -> None:
    planted, id_, level, seen, step = FAULTS[name]
    (one,) = found(planted)
    assert (one.id, one.level, one.where.partition(":")[0]) == (id_, level, "b")
    assert seen in one.seen, one.seen
    assert step in one.remedy, one.remedy


def test_a_name_that_is_loopback_is_a_note() -> None:
    """Debian's default; Ray is told the address itself, so nothing is to do."""
    (one,) = found(survey(facts("b", names={"b": ("127.0.1.1",)})))
    assert (one.id, one.level) == ("name-is-loopback", "note")
    assert format_findings((one,)) == ""


def test_addresses_that_others_cannot_use() -> None:
    usable = {"eth0": True, "docker0": False, "br-1a2b": False, "lo": False}
    for interface, expected in usable.items():
        text = "127.0.0.1" if interface == "lo" else "10.0.0.9"
        assert InterfaceAddress(interface=interface, address=text, mtu=1500).is_reachable is expected
    assert not InterfaceAddress(interface="eth0", address="fe80::1", mtu=1500).is_reachable


def test_nodes_with_the_same_fault_share_a_row() -> None:
    both = survey(facts("b", engine=replace(ENGINE, state="absent")))
    rows = {"a": facts("a", engine=replace(ENGINE, state="absent")), "b": both.facts["b"]}
    text = format_findings(check_nodes(replace(both, facts=rows), replace(NEEDS, paths=())))
    assert [line.split("  ")[0] for line in text.splitlines()] == ["node", "a, b"]


def test_what_lies_on_a_disk_that_is_missing_is_not_told_too() -> None:
    gone = NodePath(path="/data/m", there=False, said="No such file or directory")
    planted = survey(facts("b", disk=replace(DISK, there=False), paths=(gone,)))
    needs = replace(NEEDS, paths=("/data/m",))
    assert [one.id for one in check_nodes(planted, needs)] == ["disk-missing"]
    other = survey(facts("b", disk=replace(DISK, there=False), paths=(replace(gone, path="/database/m"),)))
    ids = [one.id for one in check_nodes(other, replace(NEEDS, paths=("/database/m",)))]
    assert sorted(ids) == ["disk-missing", "path-missing"]


def test_gpus_are_not_asked_where_the_target_has_none() -> None:
    without = survey(facts("b", gpu=NodeGpus()))
    assert check_nodes(without, replace(NEEDS, gpus=0, paths=())) == ()
    assert A800 in NEEDS.gpu
