"""What the stack's own programs said, GPUs, engines, fix checks: from their words to findings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fakes import h200

from rlbox.doctor.fix_checks import (
    TIMEOUT_EXIT_CODE,
    add_fix_check_ids_to_breaks,
    make_failed_check_findings,
    select_fix_checks,
)
from rlbox.doctor.gpus import (
    DriverRequirements,
    GpuFacts,
    check_cuda_init_nvml_and_gpu_health,
    check_driver,
    check_nccl_all_reduce,
    check_torch_and_triton_kernels,
)
from rlbox.doctor.host import check_engine_gpus_and_disk
from rlbox.doctor.requirements import Requirements
from rlbox.doctor.stack import (
    ProbeProgramResult,
    StackProbe,
    check_ray_task,
    check_torch_and_extensions,
    find_jit_compile_or_link_failures,
)
from rlbox.findings import Finding
from rlbox.system.gpu import CudaDriver

TARGET = Requirements(target="mine", gpu="NVIDIA H200", gpus=2)
IMPORT = {"step": "import", "ok": True, "file": "/opt/venv/lib/torch/__init__.py"}
CPU = {"step": "cpu", "ok": True}
DRIVER = {"step": "driver", "ok": True, "code": 0, "name": "CUDA_SUCCESS", "cuda": 13000, "count": 2, "library": "/l"}
GPU = replace(h200(100), memory_bytes=1 << 30, total_bytes=150 << 30)
ENGINE = {"ServerVersion": "26.1.5+dfsg1", "Runtimes": {"nvidia": {}}, "DockerRootDir": "/none"}


def ids(findings: Any) -> list[str]:
    return [finding.id for finding in findings]


def torch(*steps: dict[str, Any], **more: Any) -> list[str]:
    return ids(check_torch_and_extensions(ProbeProgramResult(steps=steps, **more), TARGET, "/opt/venv"))


LOAD = {"step": "load", "ok": False, "path": "/a.so", "error": ""}


@pytest.mark.parametrize(
    ("steps", "name"),
    [
        ((IMPORT, CPU), None),
        (({"step": "import", "ok": False, "error": "ImportError: libx"},), "torch-import"),
        ((IMPORT, {"step": "cpu", "ok": False, "error": "RuntimeError: Numpy"}), "torch-op"),
        ((IMPORT, CPU, LOAD | {"error": "OSError: /a.so: libnuma.so.1: cannot open"}), "extension-load"),
        ((IMPORT, CPU, LOAD | {"error": "OSError: /a.so: undefined symbol: _ZN3c105ErrorC1E"}), "torch-abi"),
        ((IMPORT, CPU, LOAD | {"error": "OSError: /a.so: file too short"}), "file-truncated"),
        ((IMPORT, CPU, LOAD | {"signal": 7}), "file-truncated"),
        ((IMPORT, CPU, LOAD | {"signal": 11}), "extension-load"),
        ((IMPORT, CPU, LOAD | {"signal": 4}), None),  # a variant for another processor
        ((IMPORT, CPU, LOAD | {"error": "OSError: libcuda.so.1: cannot open"}), None),  # the driver has its own finding
    ],
)
def test_torch_that_does_not_work_is_named(steps: tuple[dict[str, Any], ...], name: str | None) -> None:
    assert torch(*steps) == ([name] if name else [])


def test_a_program_without_an_answer_is_no_fault_unless_it_ended() -> None:
    assert torch(exit_code=-7, last_error="Bus error") == ["torch-op"]
    assert torch(exit_code=None) == []


def test_ray() -> None:
    done = {"step": "task", "ok": True}
    assert ids(check_ray_task(ProbeProgramResult(steps=(done,)), "/v")) == []
    failed = done | {"ok": False, "error": "RuntimeError: raylet died"}
    (finding,) = check_ray_task(ProbeProgramResult(steps=(failed,)), "/v")
    assert finding.seen == "task: RuntimeError: raylet died"
    (finding,) = check_ray_task(ProbeProgramResult(exit_code=1, last_error="ImportError: grpc"), "/v")
    assert finding.seen == "exit code 1: ImportError: grpc"


class Linker(StackProbe):
    """Stands for a compiler that complains about a library, or about every program (None)."""

    def __init__(self, compiler: str | None = "/cc", **errors: str) -> None:
        self.compiler, self.errors = compiler, errors

    def find_compiler_on_path(self) -> str | None:
        return self.compiler

    def link_and_find_error(self, compiler: str, library: str | None = None) -> str | None:
        return self.errors.get(library or "program")


def test_link() -> None:
    jit, libraries = Requirements(packages={"triton": "3"}), ("cudart", "cuda")
    assert ids(find_jit_compile_or_link_failures(Linker(None), TARGET, libraries)) == []
    assert ids(find_jit_compile_or_link_failures(Linker(None), jit, libraries)) == ["jit-no-compiler"]
    assert ids(find_jit_compile_or_link_failures(Linker(program="no stdio.h"), TARGET, libraries)) == ["jit-compile"]
    assert ids(find_jit_compile_or_link_failures(Linker(cuda="cannot find -lcuda"), TARGET, libraries[:1])) == []
    (finding,) = find_jit_compile_or_link_failures(Linker(cudart="cannot find -lcudart"), TARGET, libraries)
    assert (finding.id, finding.seen, finding.covers) == (
        "jit-link", "-lcudart: cannot find -lcudart", ("lcudart-link",),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "nvml", "names"),
    [
        ({}, {"gpus": (GPU,)}, []),
        ({"ok": False, "code": 34}, {}, ["cuda-stubs-order"]),
        ({"ok": False, "code": 802}, {}, ["fabric-manager-down"]),
        ({"ok": False, "code": 804}, {}, ["cuda-compat-shadows-driver"]),
        ({"ok": False, "code": 100}, {}, ["no-gpu-visible"]),
        ({"ok": False, "code": 999}, {}, ["cuda-after-restart"]),
        ({"ok": False, "code": 7}, {}, ["gpu-driver-broken"]),
        ({"count": 1}, {}, ["gpu-count"]),
        ({}, {"gpus": (replace(GPU, memory_bytes=141 << 30, processes=(7,)),)}, ["gpu-busy"]),
        ({}, {"gpus": (replace(GPU, uncorrected_errors=2),)}, ["gpu-hardware-fault"]),
        ({}, {"nvml_error": "NVMLError_Unknown: Unknown Error"}, ["gpu-nvml"]),
    ],
)
def test_gpus(changes: dict[str, Any], nvml: dict[str, Any], names: list[str]) -> None:
    assert (
        ids(
            check_cuda_init_nvml_and_gpu_health(
                GpuFacts(cuda=ProbeProgramResult(steps=(DRIVER | changes,)), **nvml), TARGET
            )
        )
        == names
    )


def test_gpu_kernels() -> None:
    row = {"step": "gpu", "ok": False, "number": 0, "name": "RTX 5090", "error": "no kernel image", "arch": "sm_120"}
    old = row | {"archs": ["sm_80", "sm_90"]}
    assert ids(check_torch_and_triton_kernels(ProbeProgramResult(steps=(old,)), TARGET)) == ["gpu-arch-not-in-build"]
    assert ids(check_torch_and_triton_kernels(ProbeProgramResult(steps=(row | {"archs": ["sm_120"]},)), TARGET)) == [
        "gpu-kernel"
    ]
    assert ids(check_torch_and_triton_kernels(ProbeProgramResult(steps=(row | {"ok": True},)), TARGET)) == []
    triton = {"step": "triton", "ok": False, "error": "RuntimeError: no gcc"}
    assert ids(check_torch_and_triton_kernels(ProbeProgramResult(steps=(triton,)), TARGET)) == ["jit-triton"]


def test_all_reduce() -> None:
    assert ids(check_nccl_all_reduce(ProbeProgramResult(steps=({"step": "sum", "ok": True},)), 2)) == []
    assert ids(check_nccl_all_reduce(ProbeProgramResult(steps=({"step": "sum", "ok": False},)), 2)) == [
        "nccl-self-test"
    ]
    assert ids(check_nccl_all_reduce(ProbeProgramResult(exit_code=None), 2)) == []


def test_driver() -> None:
    driver = CudaDriver(is_present=True, max_cuda_version=(12, 4), device_file_count=2)
    assert ids(check_driver(driver, DriverRequirements(), TARGET)) == []
    assert ids(
        check_driver(driver, DriverRequirements(require_cuda_variable="cuda>=12.8 brand=tesla,driver>=470"), TARGET)
    ) == ["cuda-driver-old"]
    assert ids(check_driver(driver, DriverRequirements(torch_cuda="13.0"), TARGET)) == ["cuda-driver-old"]
    assert (
        ids(check_driver(driver, DriverRequirements(torch_cuda="12.8"), TARGET)) == []
    )  # minor versions are compatible
    assert ids(check_driver(replace(driver, device_file_count=1), DriverRequirements(), TARGET)) == ["gpu-count"]
    assert ids(check_driver(CudaDriver(), DriverRequirements(), TARGET)) == ["gpu-driver-missing"]
    assert ids(check_driver(replace(driver, error="libcuda.so.1: wrong"), DriverRequirements(), TARGET)) == [
        "gpu-driver-broken"
    ]
    assert ids(check_driver(CudaDriver(), DriverRequirements(), Requirements())) == []


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, []),
        ({"Runtimes": {}}, ["gpu-runtime-missing"]),
        ({"DockerRootDir": "/"}, ["engine-disk-full"]),
    ],
)
def test_engine_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], names: list[str]
) -> None:
    monkeypatch.setattr("rlbox.doctor.host.is_engine_on_unix_socket", lambda: True)
    monkeypatch.setattr("rlbox.doctor.host.resolve_engine_address_opening_tunnel", lambda: "unix:///x.sock")
    monkeypatch.setattr("rlbox.doctor.host.free_bytes_or_0", lambda path: 1 << 30)
    assert ids(check_engine_gpus_and_disk(ENGINE | changes, TARGET)) == names
    if names == ["gpu-runtime-missing"]:
        assert ids(check_engine_gpus_and_disk(ENGINE | changes, Requirements())) == []


ROW = {"id": "a", "title": "t", "remedy": "r", "heals": ["c"], "check": {"run": "true", "when": ["run", "doctor"]}}


def test_fix_checks() -> None:
    manifest = {"fixes": [ROW, ROW | {"id": "b", "check": {"run": "x", "when": ["run"]}}, ROW | {"check": None}]}
    checks = select_fix_checks(manifest, "doctor")
    assert [check.id for check in checks] == ["a"]
    assert select_fix_checks({}, "doctor") == ()
    (finding,) = make_failed_check_findings(checks, [(1, "noise\nlib64 is not there\n")])
    assert (finding.id, finding.seen, finding.remedy, finding.covers) == ("a", "lib64 is not there", "r", ("c",))
    for spared in ((0, ""), (TIMEOUT_EXIT_CODE, ""), (2, "sh: 1: Cannot fork"), (1, "No space left on device")):
        assert list(make_failed_check_findings(checks, [spared])) == []
    assert list(make_failed_check_findings(checks, [])) == []


def test_a_broken_disk_explains_the_checks_that_read_it() -> None:
    row = ROW | {"id": "ray-temp-dir", "check": {"run": "ls /data/ray", "when": ["doctor"]}}
    checks = select_fix_checks({"fixes": [ROW, row]}, "doctor")
    (disk, other) = add_fix_check_ids_to_breaks(
        [Finding(id="data-disk-denied", title=""), Finding(id="x", title="")], checks, "/data"
    )
    assert (disk.breaks, other.breaks) == (("ray-temp-dir",), ())
