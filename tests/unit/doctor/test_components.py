"""How the parts of a stack are judged by what its programs said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlbox.doctor.components import (
    NO_GPU,
    Component,
    ComponentResult,
    StackInfo,
    format_result,
    format_summary,
    load_components,
    report_driver,
    report_import,
    report_linker,
    report_missing,
    report_nccl,
    report_ray,
    report_torch,
)
from rlbox.doctor.gpus import GpuFacts
from rlbox.doctor.programs.probe_installed import is_there
from rlbox.doctor.requirements import Requirements
from rlbox.doctor.stack import LinkerFacts, ProgramFacts

PACKAGES = {"torch": "2.8.0", "triton": "3.4.0", "ray": "2.60.0", "vllm": "0.11.0", "nvidia-cuda-runtime-cu12": "12.8"}
BARE = StackInfo(
    python="/opt/venv/bin/python",
    version="3.12.3",
    packages=PACKAGES,
    modules=frozenset({"vllm"}),
    devices=0,
    requirements=Requirements(gpus=2),
)
GPUS = replace(BARE, devices=2)
VLLM = Component(name="vLLM", package="vllm", imports=("vllm:LLM",))
IMPORT = {"step": "import", "ok": True, "file": "/opt/venv/lib/torch.py", "version": "2.8.0+cu128", "cuda": "12.8"}
CPU = {"step": "cpu", "ok": True}
NO_CUDA = {"step": "gpu", "ok": False, "count": 0, "error": "torch.cuda.is_available() is False", "archs": ["sm_120"]}
KERNEL = {"step": "gpu", "ok": True, "number": 0, "name": "RTX 5090", "arch": "sm_120", "archs": ["sm_120"]}
TRITON = {"step": "triton", "ok": True, "error": ""}


def said(*steps: dict[str, Any], **facts: Any) -> ProgramFacts:
    return ProgramFacts(steps=steps, **facts)


def states(parts: Any) -> list[tuple[str, str]]:
    return [(part.name, part.state) for part in parts]


def test_torch_without_a_gpu_is_no_fault() -> None:
    parts = list(report_torch(said(IMPORT, CPU, NO_CUDA), BARE))
    assert states(parts) == [("torch", "ok"), ("torch on GPUs", "no-gpu"), ("Triton JIT", "no-gpu")]
    assert parts[1].detail == NO_GPU


def test_a_gpu_that_torch_does_not_see_is_a_fault() -> None:
    torch, gpus, triton = report_torch(said(IMPORT, CPU, NO_CUDA), GPUS)
    assert (torch.state, gpus.state, triton.state) == ("ok", "failed", "failed")
    assert gpus.detail == "torch cannot calculate on a GPU: torch.cuda.is_available() is False"


def test_torch_on_two_gpus() -> None:
    parts = list(report_torch(said(IMPORT, CPU, KERNEL, {**KERNEL, "number": 1}, TRITON), GPUS))
    assert [part.state for part in parts] == ["ok", "ok", "ok"]
    assert parts[1].detail == "multiplies on 2 x RTX 5090 sm_120, CUDA 12.8"


def test_a_torch_of_the_wrong_architecture() -> None:
    wrong = {**KERNEL, "ok": False, "archs": ["sm_80", "sm_90"], "error": "no kernel image"}
    _, gpus, _ = report_torch(said(IMPORT, CPU, wrong), GPUS)
    assert gpus.detail == "torch has no kernels for this GPU: RTX 5090 is sm_120, torch has sm_80, sm_90"
    assert gpus.next_step == "choose a torch built for it: channel cu128 or newer for sm_120"


def test_a_triton_that_cannot_link() -> None:
    broken = {"step": "triton", "ok": False, "error": "/usr/bin/ld: cannot find -lcuda"}
    *_, triton = report_torch(said(IMPORT, CPU, KERNEL, broken), GPUS)
    assert triton.state == "failed"
    assert "cannot find -lcuda" in triton.detail


def test_a_triton_without_a_gpu_compiles() -> None:
    compiled = {"step": "triton-compile", "ok": True, "arch": "sm_120", "error": ""}
    *_, triton = report_torch(said(IMPORT, CPU, NO_CUDA, compiled), BARE)
    assert (triton.state, triton.detail) == ("ok", "compiles a kernel for sm_120; not run: no GPU here")
    *_, triton = report_torch(said(IMPORT, CPU, NO_CUDA, {**compiled, "ok": False, "error": "no ptxas"}), BARE)
    assert (triton.state, triton.detail) == ("failed", "Triton cannot compile: no ptxas")


def test_a_torch_for_the_cpu() -> None:
    parts = list(report_torch(said({**IMPORT, "cuda": ""}, CPU), replace(BARE, packages={"torch": "2.8.0"})))
    assert states(parts) == [("torch", "ok"), ("torch on GPUs", "absent"), ("Triton JIT", "absent")]


def test_a_torch_that_does_not_import() -> None:
    broken = {"step": "import", "ok": False, "error": "ImportError: libcudart.so.12: cannot open shared object file"}
    (torch,) = report_torch(said(broken), GPUS)
    assert torch.state == "failed"
    assert "libcudart.so.12" in torch.detail


def test_the_driver() -> None:
    works = {"step": "driver", "ok": True, "code": 0, "cuda": 12080, "count": 2, "library": "/lib/libcuda.so.570"}
    missing = {"step": "driver", "ok": False, "code": -1, "name": "libcuda.so.1: cannot open", "cuda": 0, "count": 0}
    stub = {**works, "ok": False, "code": 34, "name": "CUDA_ERROR_STUB_LIBRARY", "library": "/usr/stubs/libcuda.so"}
    assert report_driver(GpuFacts(cuda=said(works)), GPUS).detail == "2 GPUs, CUDA 12.8, /lib/libcuda.so.570"
    assert report_driver(GpuFacts(cuda=said(missing)), BARE).state == "no-gpu"
    assert report_driver(GpuFacts(cuda=said(missing)), GPUS).state == "failed"
    for stack in (BARE, GPUS):
        part = report_driver(GpuFacts(cuda=said(stub)), stack)
        assert part.state == "failed"
        assert part.detail == (
            "the loader takes CUDA's stub for the driver: cuInit gives 34 CUDA_ERROR_STUB_LIBRARY"
            " (/usr/stubs/libcuda.so)"
        )


def test_nccl() -> None:
    assert (
        report_nccl(said({"step": "sum", "ok": True, "error": ""}), 2, GPUS).detail == "2 processes added up a tensor"
    )
    broken = report_nccl(said({"step": "sum", "ok": False, "error": "NCCL error: unhandled system error"}), 2, GPUS)
    assert "unhandled system error" in broken.detail
    assert report_nccl(said(exit_code=1, last_error="no torch"), 2, GPUS) == ComponentResult(
        name="NCCL", state="failed", detail="no torch"
    )


def test_ray() -> None:
    assert report_ray(said({"step": "task", "ok": True}), BARE).detail == "2.60.0, one node did one task"
    late = report_ray(said(exit_code=None, was_idle=True, seconds=20.0), BARE)
    assert (late.state, late.detail) == ("failed", "no answer in 20 s: it waits for something that does not come")


@pytest.mark.parametrize(
    ("stack", "cudart", "cuda", "expected"),
    [
        (BARE, "", "", ["ok", "ok", "ok"]),
        (BARE, "cannot find -lcudart", "cannot find -lcuda", ["ok", "failed", "no-gpu"]),
        (GPUS, "", "cannot find -lcuda", ["ok", "ok", "failed"]),
    ],
)
def test_links(stack: StackInfo, cudart: str, cuda: str, expected: list[str]) -> None:
    facts = LinkerFacts(compiler="/usr/bin/cc", error_by_library={"cudart": cudart, "cuda": cuda})
    assert [part.state for part in report_linker(facts, stack)] == expected


def test_no_compiler() -> None:
    assert states(report_linker(LinkerFacts(compiler=""), BARE)) == [("C compiler", "absent")]
    assert states(report_linker(LinkerFacts(compiler="", compiler_required=True), BARE)) == [("C compiler", "failed")]


def test_imports() -> None:
    done = {"step": "import", "ok": True, "name": "vllm:LLM", "last": True}
    assert report_import(VLLM, said(done), BARE).detail == "0.11.0, imports vllm.LLM"
    error = "ImportError: libcuda.so.1: cannot open shared object file"
    broken = {"step": "import", "ok": False, "name": "vllm:LLM", "last": True, "error": error, "all": error}
    assert report_import(VLLM, said(broken), BARE).state == "no-gpu"
    part = report_import(VLLM, said({**broken, "where": "/v/x.py:3"}), GPUS)
    assert part.state == "failed"
    assert part.detail == f"0.11.0 {error} (/v/x.py:3)"
    assert part.next_step.startswith("/opt/venv/bin/python -c 'import vllm' shows all of it")
    assert report_import(VLLM, said(exit_code=-11), GPUS).detail == "0.11.0 ended by signal 11"


def test_a_first_kernel() -> None:
    done = {"step": "kernel", "ok": True, "name": "vllm:LLM", "last": True}
    assert report_import(VLLM, said(done), GPUS).detail == "0.11.0, imports vllm.LLM, runs a kernel"
    assert report_import(VLLM, said(done), BARE).detail == "0.11.0, imports vllm.LLM"  # none was run
    error = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    broken = {**done, "ok": False, "error": error, "all": error, "where": "/v/x.py:3"}
    part = report_import(VLLM, said(broken), GPUS)
    assert (part.state, part.detail) == ("failed", f"0.11.0 has no kernels for this GPU: {error}")
    assert "TORCH_CUDA_ARCH_LIST" in part.next_step
    other = report_import(VLLM, said({**broken, "error": "RuntimeError: x", "all": "x"}), GPUS)
    assert other.detail == "0.11.0 RuntimeError: x (/v/x.py:3)"


def test_what_the_lock_has_must_be_there() -> None:
    assert report_missing(VLLM, BARE).state == "absent"
    part = report_missing(VLLM, replace(BARE, requirements=Requirements(packages={"vllm": "0.11.0"})))
    assert (part.state, part.detail) == ("failed", "the lock has vllm, and vllm is not there")


def test_a_busy_machine_is_no_verdict() -> None:
    part = report_import(VLLM, said(exit_code=None, seconds=300.0), GPUS)
    assert (part.state, part.detail) == ("late", "no answer in 5 min 00 s: the machine was busy")
    assert format_summary([part], 300.0) == "components: 0 ok, 1 not done in time, 5 min 00 s"


def test_how_parts_are_shown() -> None:
    good = ComponentResult(name="torch", state="ok", detail="2.8.0", seconds=1.26)
    bad = ComponentResult(name="Ray", state="failed", detail="no answer", next_step="look")
    assert format_result(good) == "ok      torch              2.8.0, 1.3 s"
    assert format_result(bad) == "failed  Ray                no answer\n        next: look"
    assert format_summary([good, bad], 8.2) == "components: 1 ok, 1 failed, 8.2 s"


def test_the_shipped_table_names_every_framework_of_the_notes() -> None:
    names = {row.name for row in load_components()}
    assert {"vLLM", "SGLang", "verl", "OpenRLHF", "slime", "Megatron", "flash-attn", "datasets"} <= names


def test_a_folder_of_another_package_is_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """flash-attn-4 lays `flash_attn/cute`, and `import flash_attn` succeeds without flash-attn."""
    (tmp_path / "flash_attn/cute").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    flash_attn = next(row for row in load_components() if row.package == "flash-attn")
    assert is_there("flash_attn")
    assert not is_there(flash_attn.module)
    (tmp_path / "flash_attn/flash_attn_interface.py").touch()
    assert is_there(flash_attn.module)
    assert not is_there("no_such_package.part")
