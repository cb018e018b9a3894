"""Whether a split of GPUs fits, and who is in the way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlbox.doctor.gpu_inventory import (
    GpuInventory,
    GpuSplitRequest,
    LocalGpu,
    RayNode,
    SplitPlan,
    format_inventory,
    plan_split,
)

GIB = 1 << 30
FREE = tuple(LocalGpu(index=number, name="A800", used_bytes=GIB, total_bytes=80 * GIB) for number in range(8))
EIGHT = GpuInventory(gpus=FREE, ray=(RayNode(address="10.0.0.1", alive=True, gpus=8),))


def placed(split: SplitPlan) -> tuple[tuple[str, int, int], ...]:
    return tuple((row.role, row.node, row.gpus) for row in split.placements)


ROOM = "an equal number a node; left are"


@pytest.mark.parametrize(
    ("split_request", "expected", "problems"),
    [
        (GpuSplitRequest(actor=2, rollout=2, required_total=8), (("actor", 0, 2), ("rollout", 0, 2)), ()),
        (GpuSplitRequest(actor=8, rollout=8, required_total=8, colocated=True), (("actor and rollout", 0, 8),), ()),
        (
            GpuSplitRequest(actor=6, rollout=4, required_total=8),
            (("actor", 0, 6),),
            (f"rollout wants 4 GPUs, {ROOM} node 0: 2",),
        ),
        (GpuSplitRequest(actor=8, rollout=8, required_total=16, nodes=2), (("actor", 0, 8), ("rollout", 1, 8)), ()),
        (
            GpuSplitRequest(actor=12, rollout=4, required_total=16, nodes=2),
            (("actor", 0, 6), ("actor", 1, 6), ("rollout", 0, 2), ("rollout", 1, 2)),
            (),
        ),
        (
            GpuSplitRequest(actor=9, rollout=1, required_total=16, nodes=2),
            (("rollout", 0, 1),),
            (f"actor wants 9 GPUs, {ROOM} node 0: 8, node 1: 8",),
        ),
    ],
)
def test_more_than_there_are(
    split_request: GpuSplitRequest, expected: tuple[tuple[str, int, int], ...], problems: tuple[str, ...]
) -> None:
    nodes = tuple(RayNode(address=f"10.0.0.{number}", alive=True, gpus=8) for number in range(split_request.nodes))
    split = plan_split(replace(EIGHT, ray=nodes), split_request)
    assert (placed(split), split.problems) == (expected, problems)


def test_a_gpu_that_someone_holds_is_named() -> None:
    held = replace(FREE[1], used_bytes=70 * GIB, holders={42: "ann: python serve.py"})
    facts = GpuInventory(gpus=(FREE[0], held, replace(FREE[2], used_bytes=9 * GIB)), ray_error="no head answers at U")
    split = plan_split(facts, GpuSplitRequest(actor=1, rollout=1))
    assert tuple(map(str, split.problems)) == (
        "2 GPUs are needed here, 1 are free: GPU 1: pid 42 ann: python serve.py; GPU 2: someone outside this container",
    )
    assert split.notes == ("Ray is not up, so its view is not known: no head answers at U",)
    assert format_inventory(facts, split).splitlines()[:3] == [
        "GPU 0  free  A800  1.0 GiB of 80.0 GiB",
        "GPU 1  held  A800  70.0 GiB of 80.0 GiB",
        "       pid 42  ann: python serve.py",
    ]


def test_a_variable_that_hides_gpus() -> None:
    split = plan_split(replace(EIGHT, visible_devices="0,1"), GpuSplitRequest(required_total=8))
    assert split.problems == ("CUDA_VISIBLE_DEVICES=0,1 shows 2 GPUs to programs, 8 are to be used: unset it",)
    assert plan_split(replace(EIGHT, visible_devices="0,1,-1,2"), GpuSplitRequest(required_total=2)).problems == ()


def test_a_ray_that_counts_fewer() -> None:
    lost = RayNode(address="10.0.0.2", alive=False, gpus=8)
    facts = replace(EIGHT, ray=(RayNode(address="10.0.0.1", alive=True, gpus=4), lost))
    split = plan_split(facts, GpuSplitRequest(actor=4, rollout=4, required_total=8))
    assert split.problems == (
        "Ray has lost node 10.0.0.2",
        "Ray counts 4 GPUs (10.0.0.1: 4), 8 are to be there: start it with --num-gpus",
    )


def test_a_machine_without_gpus() -> None:
    none = GpuInventory(gpus=(), ray_error="no head answers at U")
    no_gpu = "no GPU here: there is no driver, or it does not answer"
    assert plan_split(none, GpuSplitRequest()).problems == (no_gpu,)
    assert format_inventory(none, plan_split(none, GpuSplitRequest())) == f"wrong: {no_gpu}"
    assert plan_split(none, GpuSplitRequest(actor=2, rollout=2, required_total=8)).problems == (
        no_gpu,
        "8 GPUs are to be on this machine, 0 are visible",
    )
