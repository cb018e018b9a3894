"""The table of doctor's checks: every judge has its row, and the judges say how many checks there are."""

from __future__ import annotations

import importlib
import pkgutil
from concurrent.futures import Future
from dataclasses import replace

import pytest

import rlbox.doctor
from rlbox.doctor.check_group import CheckGroup
from rlbox.doctor.checks import CHECKS, CheckContext, CheckScope, select_families
from rlbox.doctor.gpus import DriverRequirements
from rlbox.doctor.requirements import Requirements
from rlbox.doctor.stack import StackProbe
from rlbox.findings import Finding
from rlbox.system.gpu import GpuDriver

SCENE = CheckContext(
    environ={}, requirements=Requirements(), deadline_s=0.0, env_file_dirs=(),
    directories=[("data", "/data"), ("tmp", "/tmp")],
    get_driver_requirements=DriverRequirements, get_required_ports=dict,
)  # fmt: skip
ELSEWHERE = ["check_image_state"]  # asked by doctor/host.py, which alone can tell an image's state


def test_every_judge_has_a_row() -> None:
    names = [module.name for module in pkgutil.iter_modules(rlbox.doctor.__path__) if module.name != "__main__"]
    judges = {
        name: value
        for module in names
        for name, value in vars(importlib.import_module(f"rlbox.doctor.{module}")).items()
        if isinstance(value, CheckGroup)
    }
    asked = [row.group for row in CHECKS]
    assert [name for name, judge in judges.items() if judge not in asked] == ELSEWHERE


def test_names_are_told_apart() -> None:
    places: tuple[CheckScope, ...] = ("container", "host")
    for where in places:
        names = [row.name for row in CHECKS if row.scope in (where, "both")]
        assert len(set(names)) == len(names)


def test_judges_count_their_checks() -> None:
    counts = {row.name: row.count_checks(SCENE) for row in CHECKS}
    assert counts.items() >= {
        "limits": 13, "disks": 4, "paths": 9, "environment": 8, "processes": 3, "sandbox": 1, "ray task": 1,
        "torch": 1, "link": 1, "gpu driver": 4, "gpus": 4, "all-reduce": 1, "packages": 4, "network": 9, "fixes": 0,
        "engine": 6, "driver": 4,
        "tokens": 5, "data disk": 2,
    }.items()  # fmt: skip


def test_what_is_loaded_counts_once_it_is_known() -> None:
    (torch,) = [row for row in CHECKS if row.name == "torch"]
    context = replace(SCENE, linked_extensions=Future())
    context.linked_extensions.set_result(("a.so", "b.so"))
    assert torch.count_checks(context) == 3


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, {"sandbox", "packages", "network", "fixes"}),
        ({"requirements": Requirements(gpu="A800")}, {"sandbox", "packages", "network", "fixes", "gpu driver"}),
        (
            {
                "requirements": Requirements(packages={"torch": "2"}),
                "driver": GpuDriver(is_present=True, device_count=2),
            },
            {"sandbox", "packages", "network", "fixes", "gpu driver", "gpus", "all-reduce"},
        ),
    ],
)
def test_what_makes_no_sense_is_not_asked(changes: dict[str, object], names: set[str]) -> None:
    assert {row.name for row in select_families("container", replace(SCENE, **changes)) if row.is_slow} == names  # type: ignore[arg-type]


def test_what_an_earlier_finding_explains_is_not_asked() -> None:
    stack = StackProbe({}, "/v/bin/python", "/tmp/folder", "token")
    context = replace(SCENE, stack=stack, requirements=Requirements(packages={"torch": "2", "ray": "2"}))
    earlier = Finding(id="lib64-missing", title="", breaks=("jit-*", "ray-*"))
    before, after = select_families("container", context), select_families("container", context, [earlier])
    assert [row.name for row in before if row not in after] == ["ray task", "link"]


def test_where_the_first_check_fails_the_others_are_not_asked() -> None:
    def finds(name: str) -> list[Finding]:
        return [Finding(id=name, title="")]

    assert [row.id for row in CheckGroup(checks=(finds, finds))("a")] == ["a", "a"]
    judge = CheckGroup(prerequisite=lambda name: finds("first") if name else [], checks=(finds,))
    assert ([row.id for row in judge("a")], [row.id for row in judge("")], len(judge)) == (["first"], [""], 2)
