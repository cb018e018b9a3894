"""Which GPUs each of several engines gets."""

from __future__ import annotations

from typing import Any

import pytest

from rlbox.doctor.gpu_inventory import LocalGpu
from rlbox.evaluation.model_server import build_env_per_server_requiring_free_gpus

GIB = 1 << 30


def gpus(*used: int) -> list[LocalGpu]:
    return [LocalGpu(index=at, name="GPU", used_bytes=of * GIB, total_bytes=80 * GIB) for at, of in enumerate(used)]


@pytest.mark.parametrize(
    ("servers", "used", "visible", "settings", "expected"),
    [
        (2, (0, 0, 0, 0), None, {}, ["0", "1"]),
        (2, (0, 0, 0, 0), None, {"tensor_parallel_size": 2}, ["0,1", "2,3"]),
        (2, (0, 0, 0, 0), None, {"tensor-parallel-size": "2"}, ["0,1", "2,3"]),
        (0, (70, 0, 0, 60, 0), None, {}, ["1", "2", "4"]),
        (0, (0, 0, 0, 60, 0), None, {"tensor_parallel_size": 2}, ["0,1", "2,4"]),
        (0, (0, 70, 0, 0), "3, 1,0", {}, ["3", "0"]),
        (0, (0, 0), "GPU-4f,GPU-5e", {}, ["GPU-4f", "GPU-5e"]),
    ],
)
def test_each_server_has_free_gpus_of_its_own(
    servers: int, used: tuple[int, ...], visible: str | None, settings: dict[str, Any], expected: list[str]
) -> None:
    environments = build_env_per_server_requiring_free_gpus(servers, gpus(*used), visible, settings)
    assert [env["CUDA_VISIBLE_DEVICES"] for env in environments] == expected
    assert {env["CUDA_DEVICE_ORDER"] for env in environments} == {"PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("servers", "used", "settings", "count"),
    [
        (1, (70, 0), {}, 1),
        (0, (), {}, 1),
        (2, (), {}, 2),
        (0, (70, 70), {}, 1),  # it says itself what it lacks
        (0, (0, 0, 0), {"tensor_parallel_size": 4}, 1),
    ],
)
def test_without_a_choice_servers_take_the_gpus_they_see(
    servers: int, used: tuple[int, ...], settings: dict[str, Any], count: int
) -> None:
    assert build_env_per_server_requiring_free_gpus(servers, gpus(*used), None, settings) == [{}] * count


@pytest.mark.parametrize(
    ("wanted", "settings", "told"),
    [
        (3, {}, r"3 servers need 3 free GPUs, there are 2 \(held: 1\)"),
        (2, {"tensor_parallel_size": 2}, r"2 servers need 4 free GPUs, there are 2 \(held: 1\)"),
    ],
)
def test_too_few_free_gpus_are_told(wanted: int, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        build_env_per_server_requiring_free_gpus(wanted, gpus(0, 70, 0), None, settings)
