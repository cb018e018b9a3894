"""Which GPUs each of several engines gets."""

from __future__ import annotations

from typing import Any

import pytest

from rlbox.doctor.gpu_inventory import LocalGpu
from rlbox.evaluation.model_server import assign_gpus

GIB = 1 << 30


def gpus(*used: int) -> list[LocalGpu]:
    return [LocalGpu(index=at, name="GPU", used=of * GIB, total=80 * GIB) for at, of in enumerate(used)]


def seen(shares: list[dict[str, str]]) -> list[str]:
    return [env["CUDA_VISIBLE_DEVICES"] for env in shares]


def test_each_engine_has_gpus_of_its_own() -> None:
    assert seen(assign_gpus(2, gpus(0, 0, 0, 0), None, {})) == ["0", "1"]
    assert seen(assign_gpus(2, gpus(0, 0, 0, 0), None, {"tensor_parallel_size": 2})) == ["0,1", "2,3"]
    assert seen(assign_gpus(2, gpus(0, 0, 0, 0), None, {"tensor-parallel-size": "2"})) == ["0,1", "2,3"]
    assert {env["CUDA_DEVICE_ORDER"] for env in assign_gpus(2, gpus(0, 0), None, {})} == {"PCI_BUS_ID"}


def test_as_many_as_free_gpus_allow() -> None:
    assert seen(assign_gpus(0, gpus(70, 0, 0, 60, 0), None, {})) == ["1", "2", "4"]
    assert seen(assign_gpus(0, gpus(0, 0, 0, 60, 0), None, {"tensor_parallel_size": 2})) == ["0,1", "2,4"]


def test_no_other_than_those_that_are_shown() -> None:
    assert seen(assign_gpus(0, gpus(0, 70, 0, 0), "3, 1,0", {})) == ["3", "0"]
    assert seen(assign_gpus(0, gpus(0, 0), "GPU-4f,GPU-5e", {})) == ["GPU-4f", "GPU-5e"]


def test_one_engine_is_started_as_ever_and_without_gpus_none_is_chosen() -> None:
    assert assign_gpus(1, gpus(70, 0), "1", {}) == [{}]
    assert assign_gpus(0, [], None, {}) == [{}]
    assert assign_gpus(2, [], None, {}) == [{}, {}]


def test_where_none_is_free_one_engine_says_itself_what_it_lacks() -> None:
    assert assign_gpus(0, gpus(70, 70), None, {}) == [{}]
    assert assign_gpus(0, gpus(0, 0, 0), None, {"tensor_parallel_size": 4}) == [{}]


@pytest.mark.parametrize(
    ("wanted", "settings", "told"),
    [
        (3, {}, r"3 servers need 3 free GPUs, there are 2 \(held: 1\)"),
        (2, {"tensor_parallel_size": 2}, r"2 servers need 4 free GPUs, there are 2 \(held: 1\)"),
    ],
)
def test_too_few_free_gpus_are_told(wanted: int, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        assign_gpus(wanted, gpus(0, 70, 0), None, settings)
