"""Whether the GPUs of two roles are there, and who is in the way."""

from __future__ import annotations

from dataclasses import replace

from rlbox.doctor.gpu_inventory import (
    LocalAndRayGpus,
    LocalGpu,
    RayNode,
    find_unmet_gpu_needs_or_busy_gpus,
    format_gpu_inventory,
)

GIB = 1 << 30
FREE = tuple(LocalGpu(index=number, name="A800", used_bytes=GIB, total_bytes=80 * GIB) for number in range(8))
EIGHT = LocalAndRayGpus(gpus=FREE, ray=(RayNode(address="10.0.0.1", alive=True, gpus=8),))


def test_more_than_there_are() -> None:
    assert find_unmet_gpu_needs_or_busy_gpus(EIGHT, actor_gpus=2, rollout_gpus=2, total_gpus=8) == []
    assert find_unmet_gpu_needs_or_busy_gpus(EIGHT, actor_gpus=6, rollout_gpus=4, total_gpus=8) == [
        "actor and rollout want 10 GPUs of 8"
    ]
    two_nodes = tuple(RayNode(address=f"10.0.0.{number}", alive=True, gpus=8) for number in range(2))
    assert (
        find_unmet_gpu_needs_or_busy_gpus(replace(EIGHT, ray=two_nodes), actor_gpus=8, rollout_gpus=8, total_gpus=16)
        == []
    )


def test_a_gpu_that_someone_holds_is_named() -> None:
    held = replace(FREE[1], used_bytes=70 * GIB, holders={42: "ann: python serve.py"})
    facts = LocalAndRayGpus(
        gpus=(FREE[0], held, replace(FREE[2], used_bytes=9 * GIB)), ray_error="no head answers at U"
    )
    problems = find_unmet_gpu_needs_or_busy_gpus(facts, actor_gpus=1, rollout_gpus=1)
    assert problems == [
        "2 GPUs are needed here, 1 are free: GPU 1: pid 42 ann: python serve.py; GPU 2: someone outside this container"
    ]
    assert format_gpu_inventory(facts, problems).splitlines()[:3] == [
        "GPU 0  free  A800  1.0 GiB of 80.0 GiB",
        "GPU 1  held  A800  70.0 GiB of 80.0 GiB",
        "       pid 42  ann: python serve.py",
    ]


def test_a_variable_that_hides_gpus() -> None:
    problems = find_unmet_gpu_needs_or_busy_gpus(replace(EIGHT, visible_devices="0,1"), total_gpus=8)
    assert problems == ["CUDA_VISIBLE_DEVICES=0,1 shows 2 GPUs to programs, 8 are to be used: unset it"]
    assert find_unmet_gpu_needs_or_busy_gpus(replace(EIGHT, visible_devices="0,1,-1,2"), total_gpus=2) == []


def test_a_ray_that_counts_fewer() -> None:
    lost = RayNode(address="10.0.0.2", alive=False, gpus=8)
    facts = replace(EIGHT, ray=(RayNode(address="10.0.0.1", alive=True, gpus=4), lost))
    assert find_unmet_gpu_needs_or_busy_gpus(facts, actor_gpus=4, rollout_gpus=4, total_gpus=8) == [
        "Ray has lost node 10.0.0.2",
        "Ray counts 4 GPUs (10.0.0.1: 4), 8 are to be there: start it with --num-gpus",
    ]


def test_a_machine_without_gpus() -> None:
    none = LocalAndRayGpus(gpus=(), ray_error="no head answers at U")
    no_gpu = "no GPU here: there is no driver, or it does not answer"
    assert find_unmet_gpu_needs_or_busy_gpus(none) == [no_gpu]
    assert format_gpu_inventory(none, [no_gpu]) == f"wrong: {no_gpu}"
    assert find_unmet_gpu_needs_or_busy_gpus(none, actor_gpus=2, rollout_gpus=2, total_gpus=8) == [
        no_gpu,
        "8 GPUs are to be on this machine, 0 are visible",
    ]
