"""The GPU driver beside what an image needs, and the GPUs: what driver, NVML, torch and NCCL say of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlbox.amounts import GIB, gpu_memory_text
from rlbox.doctor.requirements import Requirements
from rlbox.doctor.stack import ProgramFacts, StackProbe
from rlbox.findings import Finding
from rlbox.foreign import whole_number
from rlbox.i18n import _
from rlbox.system.gpu import GpuDriver, GpuMemory, GpuModel, NvmlUnavailableError, probe_gpu_memory_or_raise


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


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


def check_driver(driver: GpuDriver, needs: DriverRequirements, requirements: Requirements) -> Iterator[Finding]:
    """Yield what is wrong with the driver for a target with GPUs."""
    if requirements.wants_gpu and not driver.is_present:
        yield Finding(
            id="gpu-driver-missing", title=_("there is no NVIDIA driver, and the target wants GPUs"),
            seen=_("wanted: {gpus} x {gpu}").format(gpus=requirements.gpus or 1, gpu=requirements.gpu or 'GPU'),
            where="/dev/nvidia*",
            remedy=_("run it on a machine with the GPU; inside a container: start it with --gpus all"),
            breaks=("gpu-*",), covers=("libcuda-missing", "no-gpu-visible"),
        )  # fmt: skip
    elif requirements.wants_gpu and driver.error:
        yield Finding(
            id="gpu-driver-broken", title=_("the NVIDIA driver does not answer"), seen=driver.error,
            where="libcuda.so.1",
            remedy=_("restart the container; if the host's nvidia-smi fails too, reload the driver or reboot"),
            breaks=("gpu-*",),
        )  # fmt: skip
    else:
        yield from _check_driver_version(driver, needs, requirements)
        if driver.device_count:
            yield from check_gpu_count(driver.device_count, requirements)


def _check_driver_version(
    driver: GpuDriver, needs: DriverRequirements, requirements: Requirements
) -> Iterator[Finding]:
    wanted = parse_required_cuda(needs.require_cuda_variable) or _version(needs.torch_cuda)[:1]
    has_compat = needs.has_compat_libraries and requirements.grade == "datacenter"
    is_new_enough = not driver.max_cuda_version or driver.max_cuda_version >= wanted
    if not requirements.wants_gpu or not wanted or is_new_enough or has_compat:
        return
    package = f"cuda-compat-{wanted[0]}-{(*wanted, 0)[1]}"
    forward = {
        "datacenter": f"take a base of NVIDIA's with its compatibility library ({package}; this card can use it), ",
        "workstation": "(a workstation card has no forward compatibility), ",
        "consumer": "(a consumer card has no forward compatibility), ",
    }.get(requirements.grade, "")
    variant = (
        _("take the target {variant}, ").format(variant=needs.target_for_older_drivers)
        if needs.target_for_older_drivers
        else ""
    )
    # A minor version is NVIDIA_REQUIRE_CUDA's.
    branch = "" if len(wanted) > 1 else OLDEST_DRIVERS.get(wanted[0], "")
    least = _(" to {branch} or newer").format(branch=branch) if branch else ""
    yield Finding(
        id="cuda-driver-old", title=_("the image needs a newer NVIDIA driver"),
        seen=_("the driver takes CUDA {dotted}, the image wants {dotted2}").format
            (dotted=_dotted(driver.max_cuda_version), dotted2=_dotted(wanted)), where="driver",
        remedy=_("update the host's driver{least}, {variant}{forward}or take a machine with a newer one").format
            (least=least, variant=variant, forward=forward),
        breaks=("gpu-*",),
        covers=("driver-too-old",),
    )  # fmt: skip


def check_gpu_count(count: int, requirements: Requirements) -> Iterator[Finding]:
    if count < requirements.gpus:
        yield Finding(
            id="gpu-count", title=_("there are fewer GPUs than the target uses"),
            seen=_("{count} of {gpus}").format(count=count, gpus=requirements.gpus),
            where="/dev/nvidia*",
            remedy=_("start the container with all of them, unset CUDA_VISIBLE_DEVICES, or lower hardware.gpus"),
            covers=("invalid-device-ordinal",),
        )  # fmt: skip


def find_gpus_of_other_arch(models: Sequence[GpuModel], requirements: Requirements) -> Iterator[Finding]:
    """Yield what a user must know of GPUs that are not those of the target."""
    others = [card for card in models if requirements.arch and card.arch and card.arch != requirements.arch]
    if others:
        yield Finding(
            id="gpu-other-arch", title=_("the GPU is not the one that the target is made for"), level="warning",
            seen=_("{name} is {arch}, the target {demands_arch}").format
                (name=others[0].name, arch=others[0].arch, demands_arch=requirements.arch), where="hardware.arch",
            remedy=_("choose the target of this GPU, or set hardware.gpu and hardware.arch and build it again"),
        )  # fmt: skip


OLDEST_DRIVERS = {11: "450", 12: "525", 13: "580"}
"""The oldest branch of the driver that runs a major version of CUDA, every minor one of it.

Source: NVIDIA CUDA compatibility guide, minor version compatibility.
"""


def find_stack_cuda_version(packages: Mapping[str, str]) -> str:
    """Return the CUDA that a stack's torch is built for, as `12.8`; empty when it is built for none.

    The local part of torch's version says it (`2.11.0+cu130`), else the version of the CUDA runtime that torch's wheel
    of PyPI wants.
    """
    torch = packages.get("torch", "").partition("+")[2]
    if torch.startswith("cu") and whole_number(torch[2:]) is not None:
        return f"{torch[2:-1]}.{torch[-1]}"
    runtime = next((version for name, version in packages.items() if name.startswith("nvidia-cuda-runtime")), "")
    return "" if torch else ".".join(runtime.split(".")[:2])


def parse_required_cuda(require_cuda_variable: str) -> tuple[int, ...]:
    """Return the least CUDA of `NVIDIA_REQUIRE_CUDA`: `cuda>=12.8 brand=tesla,driver>=470` is (12, 8)."""
    found = re.search(r"\bcuda>=(\d+(?:\.\d+)*)", require_cuda_variable)
    return _version(found.group(1)) if found else ()


def _version(text: str) -> tuple[int, ...]:
    return tuple(number for part in text.split(".") if (number := whole_number(part)) is not None)


# What cuInit's codes mean for who runs a container; source: cuda.h, and issues 803/804 of gpustack and vLLM.
_COMPAT_REMEDY = _("take …/compat off the loader's paths")
_DRIVER_ERRORS = {
    34: (
        "cuda-stubs-order",
        _("the loader takes CUDA's stub for the driver"),
        _("take …/stubs off LD_LIBRARY_PATH"),
    ),
    100: (
        "no-gpu-visible",
        _("the driver shows no GPU to this container"),
        _("start it with --gpus all; unset CUDA_VISIBLE_DEVICES"),
    ),
    803: ("cuda-compat-shadows-driver", _("another driver library hides the host's"), _COMPAT_REMEDY),
    804: ("cuda-compat-shadows-driver", _("forward compatibility does not support this GPU"), _COMPAT_REMEDY),
    999: ("cuda-after-restart", _("the driver lost the GPU"), _("restart the container; then the host's driver")),
}
_UNKNOWN_DRIVER_ERROR = (
    "gpu-driver-broken",
    _("the driver does not start"),
    _("restart the container, then the host's driver"),
)
_BUSY = 0.1  # of a GPU's memory: engines claim 90 % and fail with less; doctor's own programs take 1 GiB


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """How CUDA starts in the stack's environment, and what NVML says of the GPUs; `nvml_error` is why it does not."""

    cuda: ProgramFacts
    memory: tuple[GpuMemory, ...] = ()
    nvml_error: str = ""


def check_cuda_nvml_gpu_memory(facts: GpuFacts, requirements: Requirements) -> Iterator[Finding]:
    driver = next((row for row in facts.cuda.steps if row["step"] == "driver"), None)
    if driver and driver.get("ok"):
        yield from check_gpu_count(int(driver["count"]), requirements)
    elif driver:
        name, title, remedy = _DRIVER_ERRORS.get(int(driver.get("code", -1)), _UNKNOWN_DRIVER_ERROR)
        yield Finding(
            id=name, title=title, seen=f"cuInit gives {driver.get('code')} {driver.get('name')}".rstrip(),
            where=str(driver.get("library") or "libcuda.so.1"), remedy=remedy, breaks=("gpu-*", "torch-op", "nccl-*"),
        )  # fmt: skip
    if facts.nvml_error:
        yield Finding(
            id="gpu-nvml", title=_("the GPUs cannot be managed"), seen=facts.nvml_error, where="libnvidia-ml.so.1",
            remedy=_("restart the container: a reload of systemd takes devices away from running ones"),
            covers=("cuda-after-restart", "driver-library-mismatch"),
        )  # fmt: skip
    for gpu in facts.memory:
        yield from _check_memory(gpu)


def _check_memory(gpu: GpuMemory) -> Iterator[Finding]:
    if gpu.uncorrected_errors:
        yield Finding(
            id="gpu-hardware-fault", title=_("a GPU has memory errors"),
            seen=_("{bad} uncorrected").format(bad=gpu.uncorrected_errors),
            where=f"GPU {gpu.index}", remedy=_("leave this GPU out (CUDA_VISIBLE_DEVICES) and have it replaced"),
        )  # fmt: skip
    used = gpu.total_bytes - gpu.free_bytes
    if used > max(_BUSY * gpu.total_bytes, 2 * GIB):
        texts = [_("pid {pid} {used}").format(pid=pid, used=gpu_memory_text(own)) for pid, own in gpu.processes]
        users = ", ".join(texts) or _("outside this container")
        yield Finding(
            id="gpu-busy", title=_("a GPU's memory is in use"), level="warning",
            seen=_("{memory} of {total}: {users}").format
                (memory=gpu_memory_text(used), total=gpu_memory_text(gpu.total_bytes), users=users),
            where=f"GPU {gpu.index}",
            remedy=_("ask its owner (`ps -o user,args -p PID`), then end it, or choose another GPU"),
            covers=("free-memory-below-utilization",),
        )  # fmt: skip


def probe_cuda_and_nvml(stack: StackProbe, monotonic_deadline: float) -> GpuFacts:
    cuda = stack.run("probe_cuda.py", monotonic_deadline=monotonic_deadline)
    try:
        return GpuFacts(cuda=cuda, memory=probe_gpu_memory_or_raise())
    except NvmlUnavailableError as error:
        return GpuFacts(cuda=cuda, nvml_error=str(error))


def check_torch_and_triton_kernels(facts: ProgramFacts, requirements: Requirements) -> Iterator[Finding]:
    for row in facts.steps:
        if row["step"] == "triton" and not row.get("ok"):
            yield Finding(
                id="jit-triton", title=_("Triton cannot compile a kernel"), seen=str(row.get("error")),
                where="triton",
                remedy=_("it needs gcc, Python's headers and libcuda.so.1; TRITON_CACHE_DIR must be writable"),
                covers=("triton-cc-build-failed", "triton-launcher-compile", "triton-unsupported-gpu"),
            )  # fmt: skip
        if row["step"] != "gpu" or row.get("ok"):
            continue
        arch, archs = str(row.get("arch", "")), [str(name) for name in row.get("archs", ())]
        if arch and archs and not _has_kernels(arch, archs):
            yield Finding(
                id="gpu-arch-not-in-build", title=_("torch has no kernels for this GPU"),
                seen=_("{name} is {arch}, torch has {archs}").format
                    (name=row.get('name'), arch=arch, archs=', '.join(archs)), where=f"GPU {row.get('number')}",
                remedy=_("choose a torch built for it: channel cu128 or newer for sm_120"), breaks=("gpu-kernel",),
            )  # fmt: skip
        elif requirements.wants_gpu or "count" not in row:
            yield Finding(
                id="gpu-kernel", title=_("torch cannot calculate on a GPU"), seen=str(row.get("error")),
                where=f"GPU {row.get('number', '')}".rstrip(),
                remedy=_("see the error; CUDA_LAUNCH_BLOCKING=1 names the kernel"),
            )  # fmt: skip


def _has_kernels(arch: str, archs: list[str]) -> bool:
    """Whether a build runs on `arch`: by kernels of its own major version, or by PTX of an older one."""
    major = arch.removeprefix("sm_")[:-1]
    exact = any(name.removeprefix("sm_")[:-1] == major and name <= arch for name in archs if name.startswith("sm_"))
    ptx = [whole_number(name[8:]) for name in archs if name.startswith("compute_")]
    return exact or any(number is not None and number <= int(arch.removeprefix("sm_")) for number in ptx)


def check_all_reduce(facts: ProgramFacts, count: int) -> Iterator[Finding]:
    """Yield why the GPUs could not add up a tensor together."""
    for row in facts.steps:
        if not row.get("ok"):
            yield Finding(
                id="nccl-self-test", title=_("{count} GPUs cannot add up a tensor over NCCL").format(count=count),
                seen=str(row.get("error")), where=_("NCCL"),
                remedy=_("NCCL_DEBUG=INFO shows the transport that fails; try NCCL_P2P_DISABLE=1, then "
"NCCL_SHM_DISABLE=1"),
            )  # fmt: skip
