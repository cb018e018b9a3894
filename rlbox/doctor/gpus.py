"""The GPU driver beside what an image needs, and the GPUs: what driver, NVML, torch and NCCL say of them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlbox.amounts import GIB, gpu_gib_or_mib_text
from rlbox.doctor.catalogue import load_finding_texts, make_finding
from rlbox.doctor.requirements import Requirements
from rlbox.doctor.stack import ProbeProgramResult, StackProbe
from rlbox.findings import Finding
from rlbox.foreign import parse_digits
from rlbox.i18n import _
from rlbox.system.gpu import CudaDriver, GpuStatus, NvmlUnavailableError, find_pcie_p2p_gpu_bus_ids, query_gpus_or_raise
from rlbox.system.process_table import read_text_or_empty


@dataclass(frozen=True, kw_only=True)
class DriverRequirements:
    """What an image asks of a driver: `NVIDIA_REQUIRE_CUDA` as it stands, and the CUDA that its torch is built for.

    `has_compat_libraries` says that it holds CUDA's forward compatibility library, which data-centre cards alone can
    use. `target_for_older_drivers` is the target of the same stack for older drivers, where there is one.
    """

    require_cuda_variable: str = ""
    torch_cuda: str = ""
    has_compat_libraries: bool = False
    target_for_older_drivers: str = ""


def check_driver(driver: CudaDriver, needs: DriverRequirements, requirements: Requirements) -> Iterator[Finding]:
    if requirements.wants_gpu and _is_refused_by_device_rules("/dev/nvidiactl"):
        yield make_finding("gpu-devices-refused")
    elif requirements.wants_gpu and not driver.is_present:
        yield make_finding("gpu-driver-missing", gpus=requirements.gpus or 1, gpu=requirements.gpu or "GPU")
    elif requirements.wants_gpu and driver.error:
        yield make_finding("gpu-driver-broken", seen=driver.error)
    else:
        yield from _check_driver_version(driver, needs, requirements)
        if driver.device_file_count:
            yield from _check_gpu_count(driver.device_file_count, requirements)


def _is_refused_by_device_rules(device: str) -> bool:
    """Return whether a container's device rules refuse a device: they answer EPERM, a file's mode EACCES."""
    try:
        os.close(os.open(device, os.O_RDWR))
    except OSError as error:
        return error.errno == errno.EPERM
    return False


def _check_driver_version(
    driver: CudaDriver, needs: DriverRequirements, requirements: Requirements
) -> Iterator[Finding]:
    wanted = _parse_required_cuda(needs.require_cuda_variable) or _parse_version(needs.torch_cuda)[:1]
    has_compat = needs.has_compat_libraries and requirements.grade == "datacenter"
    is_new_enough = not driver.max_cuda_version or driver.max_cuda_version >= wanted
    if not requirements.wants_gpu or not wanted or is_new_enough or has_compat:
        return
    package = f"cuda-compat-{wanted[0]}-{(*wanted, 0)[1]}"
    forward = f"take a base of NVIDIA's with its compatibility library ({package}; this card can use it), "
    variant = needs.target_for_older_drivers
    branch = "" if len(wanted) > 1 else OLDEST_DRIVERS.get(wanted[0], "")  # a minor version is NVIDIA_REQUIRE_CUDA's
    yield make_finding(
        "cuda-driver-old",
        dotted=".".join(map(str, driver.max_cuda_version)),
        dotted2=".".join(map(str, wanted)),
        least=_(" to {branch} or newer").format(branch=branch) if branch else "",
        variant=_("take the target {variant}, ").format(variant=variant) if variant else "",
        forward=forward if requirements.grade == "datacenter" else "",
    )


def _check_gpu_count(count: int, requirements: Requirements) -> Iterator[Finding]:
    if count < requirements.gpus:
        yield make_finding("gpu-count", count=count, gpus=requirements.gpus)


def check_required_gpu_arch(gpus: Sequence[GpuStatus], requirements: Requirements) -> Iterator[Finding]:
    wanted = requirements.arch
    if other := next((gpu for gpu in gpus if wanted and gpu.arch and gpu.arch != wanted), None):
        yield make_finding("gpu-other-arch", level="warning", name=other.name, arch=other.arch, demands_arch=wanted)


OLDEST_DRIVERS = {11: "450", 12: "525", 13: "580"}
"""The oldest branch of the driver that runs a major version of CUDA, every minor one of it.

Source: NVIDIA CUDA compatibility guide, minor version compatibility.
"""


def find_stack_cuda_version_or_empty(packages: Mapping[str, str]) -> str:
    """Return the CUDA that a stack's torch is built for, as `12.8`; empty when it is built for none.

    The local part of torch's version says it (`2.11.0+cu130`), else the version of the CUDA runtime that torch's wheel
    of PyPI wants.
    """
    torch = packages.get("torch", "").partition("+")[2]
    if torch.startswith("cu") and parse_digits(torch[2:]) is not None:
        return f"{torch[2:-1]}.{torch[-1]}"
    runtime = next((version for name, version in packages.items() if name.startswith("nvidia-cuda-runtime")), "")
    return "" if torch else ".".join(runtime.split(".")[:2])


def _parse_required_cuda(require_cuda_variable: str) -> tuple[int, ...]:
    """Return the least CUDA of `NVIDIA_REQUIRE_CUDA`: `cuda>=12.8 brand=tesla,driver>=470` is (12, 8)."""
    found = re.search(r"\bcuda>=(\d+(?:\.\d+)*)", require_cuda_variable)
    return _parse_version(found.group(1)) if found else ()


def _parse_version(text: str) -> tuple[int, ...]:
    return tuple(number for part in text.split(".") if (number := parse_digits(part)) is not None)


_BUSY = 0.1  # of a GPU's memory: engines claim 90 % and fail with less; doctor's own programs take 1 GiB


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """How CUDA starts in the stack's environment, and what NVML says of the GPUs; `nvml_error` is why it does not."""

    cuda: ProbeProgramResult
    gpus: tuple[GpuStatus, ...] = ()
    nvml_error: str = ""


def check_cuda_init_nvml_and_gpu_health(facts: GpuFacts, requirements: Requirements) -> Iterator[Finding]:
    driver = next((row for row in facts.cuda.steps if row["step"] == "driver"), None)
    if driver and driver.get("ok"):
        yield from _check_gpu_count(int(driver["count"]), requirements)
    elif driver:
        of_code = f"cuinit-{driver.get('code')}"
        yield make_finding(
            of_code if of_code in load_finding_texts() else "cuinit",
            seen=f"cuInit gives {driver.get('code')} {driver.get('name')}".rstrip(),
            where=str(driver.get("library") or "libcuda.so.1"),
        )
    if facts.nvml_error:
        yield make_finding("gpu-nvml", seen=facts.nvml_error)
    for gpu in facts.gpus:
        if gpu.uncorrected_errors:
            yield make_finding("gpu-hardware-fault", index=gpu.index, bad=gpu.uncorrected_errors)
        if gpu.memory_bytes > max(_BUSY * gpu.total_bytes, 2 * GIB):
            yield make_finding(
                "gpu-busy", level="warning", index=gpu.index,
                memory=gpu_gib_or_mib_text(gpu.memory_bytes), total=gpu_gib_or_mib_text(gpu.total_bytes),
                users=", ".join(f"pid {pid}" for pid in gpu.processes) or _("outside this container"),
            )  # fmt: skip


def check_pcie_iommu(environ: Mapping[str, str], root: Path = Path("/")) -> Iterator[Finding]:
    """Yield a finding where GPUs copy over PCIe through an IOMMU that translates, which CUDA supports in VMs only.

    Source: CUDA C++ Programming Guide, "IOMMU on Linux"; NVIDIA/nccl#2079; the kernel's sysfs-kernel-iommu_groups.
    """
    if environ.get("NCCL_P2P_DISABLE") == "1" or "hypervisor" in read_text_or_empty(root / "proc/cpuinfo"):
        return
    for bus_id in sorted(find_pcie_p2p_gpu_bus_ids()):
        file = root / "sys/bus/pci/devices" / bus_id / "iommu_group/type"
        if (group_type := read_text_or_empty(file).strip()) in ("DMA", "DMA-FQ"):  # with iommu=pt it is `identity`
            yield make_finding("gpu-peers-iommu", level="warning", where=str(file), bus_id=bus_id, type=group_type)
            return


def probe_cuda_and_nvml(stack: StackProbe, monotonic_deadline: float) -> GpuFacts:
    cuda = stack.run("probe_cuda.py", monotonic_deadline=monotonic_deadline)
    try:
        return GpuFacts(cuda=cuda, gpus=query_gpus_or_raise())
    except NvmlUnavailableError as error:
        return GpuFacts(cuda=cuda, nvml_error=str(error))


def check_torch_and_triton_kernels(facts: ProbeProgramResult, requirements: Requirements) -> Iterator[Finding]:
    for row in facts.steps:
        if row.get("ok"):
            continue
        if row["step"] == "triton":
            yield make_finding("jit-triton", seen=str(row.get("error")))
        if row["step"] != "gpu":
            continue
        arch, archs = str(row.get("arch", "")), [str(name) for name in row.get("archs", ())]
        where = f"GPU {row.get('number', '')}".rstrip()
        if arch and archs and not _has_kernels(arch, archs):
            yield make_finding(
                "gpu-arch-not-in-build", where=where, name=row.get("name"), arch=arch, archs=", ".join(archs)
            )
        elif requirements.wants_gpu or "count" not in row:
            yield make_finding("gpu-kernel", seen=str(row.get("error")), where=where)


def _has_kernels(arch: str, archs: list[str]) -> bool:
    """Whether a build runs on `arch`: by kernels of its own major version, or by PTX of an older one."""
    major = arch.removeprefix("sm_")[:-1]
    exact = any(name.removeprefix("sm_")[:-1] == major and name <= arch for name in archs if name.startswith("sm_"))
    ptx = [parse_digits(name[8:]) for name in archs if name.startswith("compute_")]
    return exact or any(number is not None and number <= int(arch.removeprefix("sm_")) for number in ptx)


def check_nccl_all_reduce(facts: ProbeProgramResult, process_count: int) -> Iterator[Finding]:
    for row in facts.steps:
        if not row.get("ok"):
            yield make_finding("nccl-self-test", seen=str(row.get("error")), count=process_count)
