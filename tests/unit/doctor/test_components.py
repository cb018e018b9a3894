"""What the self-test of a stack reports for what its programs print."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from test_doctor_stack import Linker

from rlbox.doctor.components import (
    NO_GPU,
    NOT_INSTALLED,
    ComponentResult,
    StackComponent,
    StackInfo,
    check_c_compiler_and_linker,
    make_cuda_driver_result,
    make_import_or_kernel_result,
    make_missing_component_result,
    make_nccl_result,
    make_torch_and_triton_results,
)
from rlbox.doctor.gpus import GpuFacts
from rlbox.doctor.requirements import Requirements
from rlbox.doctor.stack import ProbeProgramResult

PACKAGES = {"torch": "2.8.0", "triton": "3.4.0", "ray": "2.60.0", "vllm": "0.11.0", "nvidia-cuda-runtime-cu12": "12.8"}
BARE = StackInfo(
    interpreter_path="/opt/venv/bin/python",
    python_version="3.12.3",
    packages=PACKAGES,
    gpu_device_count=0,
    requirements=Requirements(gpus=2),
)
GPUS = replace(BARE, gpu_device_count=2)
VLLM = StackComponent(name="vLLM", packages=("vllm",), imports=("vllm:LLM",))
IMPORT = {"step": "import", "ok": True, "file": "/opt/venv/lib/torch.py", "version": "2.8.0+cu128", "cuda": "12.8"}
CPU = {"step": "cpu", "ok": True}
NO_CUDA = {"step": "gpu", "ok": False, "count": 0, "error": "torch.cuda.is_available() is False", "archs": ["sm_120"]}
KERNEL = {"step": "gpu", "ok": True, "number": 0, "name": "RTX 5090", "arch": "sm_120", "archs": ["sm_120"]}
TRITON = {"step": "triton", "ok": True, "error": ""}
WRONG_ARCH = {**KERNEL, "ok": False, "archs": ["sm_80", "sm_90"], "error": "no kernel image"}
NO_TORCH = {"step": "import", "ok": False, "error": "ImportError: libcudart.so.12: cannot open shared object file"}


def facts(*steps: dict[str, Any], **more: Any) -> ProbeProgramResult:
    return ProbeProgramResult(steps=steps, **more)


def states(results: Iterable[ComponentResult]) -> list[str]:
    return [result.state for result in results]


@pytest.mark.parametrize(
    ("stack", "steps", "expected", "detail"),
    [
        (BARE, (IMPORT, CPU, NO_CUDA), ["ok", "no-gpu", "no-gpu"], NO_GPU),
        (
            GPUS,
            (IMPORT, CPU, NO_CUDA),
            ["ok", "failed", "failed"],
            "torch cannot calculate on a GPU: torch.cuda.is_available() is False",
        ),
        (
            GPUS,
            (IMPORT, CPU, KERNEL, {**KERNEL, "number": 1}, TRITON),
            ["ok", "ok", "ok"],
            "multiplies on 2 x RTX 5090 sm_120, CUDA 12.8",
        ),
        (
            GPUS,
            (IMPORT, CPU, WRONG_ARCH),
            ["ok", "failed", "failed"],
            "torch has no kernels for this GPU: RTX 5090 is sm_120, torch has sm_80, sm_90",
        ),
        (
            GPUS,
            (IMPORT, CPU, KERNEL, {**TRITON, "ok": False, "error": "/usr/bin/ld: cannot find -lcuda"}),
            ["ok", "ok", "failed"],
            "cannot find -lcuda",
        ),
        (replace(BARE, packages={}), ({**IMPORT, "cuda": ""}, CPU), ["ok", "absent", "absent"], "built for the CPU"),
        (GPUS, (NO_TORCH,), ["failed"], "libcudart.so.12"),
    ],
)
def test_torch(stack: StackInfo, steps: tuple[dict[str, Any], ...], expected: list[str], detail: str) -> None:
    results = list(make_torch_and_triton_results(facts(*steps), stack))
    assert states(results) == expected
    assert any(detail in result.detail for result in results)


def test_the_driver() -> None:
    works = {"step": "driver", "ok": True, "code": 0, "cuda": 12080, "count": 2, "library": "/lib/libcuda.so.570"}
    missing = {"step": "driver", "ok": False, "code": -1, "name": "libcuda.so.1: cannot open", "cuda": 0, "count": 0}
    stub = {**works, "ok": False, "code": 34, "name": "CUDA_ERROR_STUB_LIBRARY", "library": "/usr/stubs/libcuda.so"}
    assert make_cuda_driver_result(GpuFacts(cuda=facts(works)), GPUS).detail == "2 GPUs, CUDA 12.8, /lib/libcuda.so.570"
    assert make_cuda_driver_result(GpuFacts(cuda=facts(missing)), BARE).state == "no-gpu"
    assert make_cuda_driver_result(GpuFacts(cuda=facts(missing)), GPUS).state == "failed"
    result = make_cuda_driver_result(GpuFacts(cuda=facts(stub)), BARE)
    assert (result.state, "cuInit gives 34 CUDA_ERROR_STUB_LIBRARY" in result.detail) == ("failed", True)


def test_nccl() -> None:
    added = {"step": "sum", "ok": True, "error": ""}
    assert make_nccl_result(facts(added), 2).detail == "2 processes added up a tensor"
    broken = facts({**added, "ok": False, "error": "NCCL error: unhandled system error"}, exit_code=None)
    assert "unhandled system error" in make_nccl_result(broken, 2).detail
    failed = make_nccl_result(facts(exit_code=1, last_error="no torch"), 2)
    assert (failed.state, failed.detail) == ("failed", "no torch")


@pytest.mark.parametrize(
    ("stack", "linker", "state", "detail"),
    [
        (BARE, Linker(), "ok", "/cc links cudart"),
        (BARE, Linker(cuda="x"), "ok", "/cc links cudart"),
        (GPUS, Linker(cuda="x"), "failed", "-lcuda: x"),
        (BARE, Linker(None), "absent", NOT_INSTALLED),
        (replace(BARE, requirements=Requirements(packages={"triton": "3"})), Linker(None), "failed", "compiler"),
    ],
)
def test_linker(stack: StackInfo, linker: Linker, state: str, detail: str) -> None:
    result = check_c_compiler_and_linker(linker, stack)
    assert result.state == state
    assert detail in result.detail


DONE = {"step": "import", "ok": True, "name": "vllm:LLM", "last": True}
NO_DRIVER = "ImportError: libcuda.so.1: cannot open shared object file"
BROKEN = {**DONE, "ok": False, "error": NO_DRIVER, "all": NO_DRIVER, "where": "/v/x.py:3"}
RAN = {**DONE, "step": "kernel"}
ABSENT = "ModuleNotFoundError: No module named '{}'"
NO_KERNEL = "RuntimeError: CUDA error: no kernel image is available for execution on the device"


@pytest.mark.parametrize(
    ("stack", "program", "state", "detail"),
    [
        (BARE, facts(DONE), "ok", "0.11.0, imports vllm.LLM"),
        (GPUS, facts(RAN), "ok", "0.11.0, imports vllm.LLM, runs a kernel"),
        (BARE, facts(RAN), "ok", "0.11.0, imports vllm.LLM"),  # no kernel was run
        (BARE, facts(BROKEN), "no-gpu", f"{NO_GPU}: it needs libcuda.so.1"),
        (GPUS, facts(BROKEN), "failed", f"0.11.0 {NO_DRIVER} (/v/x.py:3)"),
        (GPUS, facts(exit_code=-11), "failed", "0.11.0 ended by signal 11"),
        (GPUS, facts(exit_code=None, seconds=300.0), "late", "no answer in 5 min 00 s"),
        (BARE, facts({**BROKEN, "error": ABSENT.format("vllm"), "all": ""}), "absent", "not in this stack"),
        (GPUS, facts({**BROKEN, "error": ABSENT.format("x")}), "failed", f"0.11.0 {ABSENT.format('x')} (/v/x.py:3)"),
        (
            GPUS,
            facts({**RAN, "ok": False, "error": NO_KERNEL, "all": NO_KERNEL}),
            "failed",
            f"0.11.0 has no kernels for this GPU: {NO_KERNEL}",
        ),
    ],
)
def test_import(stack: StackInfo, program: ProbeProgramResult, state: str, detail: str) -> None:
    result = make_import_or_kernel_result(VLLM, program, stack)
    assert (result.state, result.detail) == (state, detail)


def test_a_component_of_the_lock_must_be_there() -> None:
    assert make_missing_component_result(VLLM, BARE).state == "absent"
    locked = replace(BARE, requirements=Requirements(packages={"vllm": "0.11.0"}))
    result = make_missing_component_result(VLLM, locked)
    assert (result.state, result.detail) == ("failed", "the lock has vllm, and vllm is not there")
