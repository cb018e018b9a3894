"""What is wrong with nodes, a row a fault: planted in the facts of one node, it alone is found, with its way out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from clusterfacts import DISK, ENGINE, NEEDS, facts, survey
from clusterfaults import FAULTS, found

from rlbox.cluster.checks import check_nodes, format_findings
from rlbox.cluster.facts import NodeGpus


def test_sound_nodes_have_no_finding() -> None:
    assert found(survey()) == ()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_no_other(name: str) -> None:
    planted, id_, level, seen, step = FAULTS[name]
    (one,) = found(planted)
    assert (one.id, one.level, one.where.partition(":")[0]) == (id_, level, "b")
    assert seen in one.seen, one.seen
    assert step in one.remedy, one.remedy


def test_nodes_with_the_same_fault_share_a_row() -> None:
    both = survey(facts("b", engine=replace(ENGINE, state="absent")))
    rows = {"a": facts("a", engine=replace(ENGINE, state="absent")), "b": both.facts["b"]}
    text = format_findings(check_nodes(replace(both, facts=rows), replace(NEEDS, paths=())))
    assert [line.split("  ")[0] for line in text.splitlines()] == ["node", "a, b"]


def test_path_on_a_missing_disk_is_not_reported() -> None:
    planted = survey(facts("b", disk=replace(DISK, there=False), paths=()))
    for path, ids in (("/data/m", ["disk-missing"]), ("/database/m", ["disk-missing", "path-missing"])):
        findings = check_nodes(replace(planted, facts={"b": planted.facts["b"]}), replace(NEEDS, paths=(path,)))
        assert sorted(one.id for one in findings) == ids


def test_gpus_are_not_asked_where_the_target_has_none() -> None:
    needs = replace(NEEDS, hardware=NEEDS.hardware.model_copy(update={"gpus": 0}))
    assert check_nodes(survey(facts("b", gpu=NodeGpus())), needs) == ()
