"""`cluster-2node` built for real: OpenRLHF without flash-attn, and DeepSpeed's optimizer compiled in the image."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from bigimage import BigImage, built, empty_box

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]

TARGET = "cluster-2node"
IMPORTED = ("torch", "vllm", "ray", "deepspeed")
STEP = """
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
weight = torch.nn.Parameter(torch.ones(100))
optimizer = DeepSpeedCPUAdam([weight], lr=0.5)
weight.grad = torch.ones(100)
optimizer.step()
print(f"{weight[0].item():.1f}")
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BigImage]:
    """The image, built from what rlbox ships, and taken away afterwards."""
    with built(TARGET, empty_box(tmp_path_factory.mktemp(TARGET))) as image:
        print(image.said)
        yield image


def test_it_imports_what_is_locked(image: BigImage) -> None:
    locked = image.locked()
    assert image.versions(*IMPORTED) == {name: locked[name] for name in IMPORTED}


def test_the_optimizer_on_the_cpu_compiles_and_steps(image: BigImage) -> None:
    assert image.run("python", "-c", STEP, timeout_s=1200).split()[-1] == "0.5"


def test_every_cuda_library_is_linked(image: BigImage) -> None:
    """DeepSpeed links libcurand where it sees a GPU."""
    program = (
        "echo 'int main(void) { return 0; }' | gcc -x c - -Wl,--no-as-needed -lcurand -lcublas -lnvrtc -o /tmp/linked"
    )
    image.run("sh", "-c", program)


def test_the_component_test_passes_without_a_gpu(image: BigImage) -> None:
    report = json.loads(image.run("rlbox", "components", "--json", "--timeout", "1500", timeout_s=1600))
    assert [part for part in report["parts"] if part["state"] == "failed"] == []
