"""Judge the GPUs: the driver's own answer, memory in use, what torch computes on each, a sum over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlbox.amounts import GIB, card_text, duration_text
from rlbox.doctor.check_group import CheckGroup
from rlbox.doctor.engine import check_gpu_count
from rlbox.doctor.requirements import Requirements
from rlbox.doctor.stack import ProgramFacts
from rlbox.findings import Finding
from rlbox.foreign import whole_number
from rlbox.i18n import _

_STUB = 34  # CUDA_ERROR_STUB_LIBRARY
# What cuInit's codes mean for who runs a container; source: cuda.h, and issues 803/804 of gpustack and vLLM.
_MEANS = {
    _STUB: (
        "cuda-stubs-order",
        _("the loader takes CUDA's stub for the driver"),
        _("take …/stubs off LD_LIBRARY_PATH"),
    ),
    100: (
        "no-gpu-visible",
        _("the driver shows no GPU to this container"),
        _("start it with --gpus all; unset CUDA_VISIBLE_DEVICES"),
    ),
    803: (
        "cuda-compat-shadows-driver",
        _("another driver library hides the host's"),
        _("take …/compat off the loader's paths"),
    ),
    804: (
        "cuda-compat-shadows-driver",
        _("forward compatibility is not for this card"),
        _("take …/compat off the loader's paths"),
    ),
    999: ("cuda-after-restart", _("the driver lost the GPU"), _("restart the container; then the host's driver")),
}
_BUSY = 0.1  # of a GPU's memory: engines claim 90 % and fail with less; doctor's own programs take 1 GiB


def _driver(facts: ProgramFacts) -> Mapping[str, Any] | None:
    return next((row for row in facts.steps if row["step"] == "driver"), None)


def _starts(facts: ProgramFacts, __: Requirements) -> Iterator[Finding]:
    driver = _driver(facts)
    if driver and not driver.get("ok"):
        unknown = (
            "gpu-driver-broken",
            _("the driver does not start"),
            _("restart the container, then the host's driver"),
        )
        name, title, remedy = _MEANS.get(int(driver.get("code", -1)), unknown)
        yield Finding(
            id=name, title=title, seen=f"cuInit gives {driver.get('code')} {driver.get('name')}".rstrip(),
            where=str(driver.get("library") or "libcuda.so.1"), remedy=remedy, breaks=("gpu-*", "torch-op", "nccl-*"),
        )  # fmt: skip


def _all_there(facts: ProgramFacts, requirements: Requirements) -> Iterator[Finding]:
    driver = _driver(facts)
    if driver and driver.get("ok"):
        yield from check_gpu_count(int(driver["count"]), requirements)


def _managed(facts: ProgramFacts, __: Requirements) -> Iterator[Finding]:
    for row in facts.steps:
        if row["step"] == "nvml":
            yield Finding(
                id="gpu-nvml", title=_("the GPUs cannot be managed"), seen=str(row.get("error")),
                where="libnvidia-ml.so.1",
                remedy=_("restart the container: a reload of systemd takes devices away from running ones"),
                covers=("cuda-after-restart", "driver-library-mismatch"),
            )  # fmt: skip


def _memory(facts: ProgramFacts, __: Requirements) -> Iterator[Finding]:
    for row in facts.steps:
        if row["step"] == "memory":
            yield from _one_memory(row)


def _one_memory(row: Mapping[str, Any]) -> Iterator[Finding]:
    total, free = int(row["total"]), int(row["free"])
    if int(row.get("bad", 0)):
        yield Finding(
            id="gpu-hardware-fault", title=_("a GPU has memory errors"),
            seen=_("{bad} uncorrected").format(bad=row['bad']),
            where=f"GPU {row['number']}", remedy=_("leave this GPU out (CUDA_VISIBLE_DEVICES) and have it replaced"),
        )  # fmt: skip
    if total - free > max(_BUSY * total, 2 * GIB):
        users = ", ".join(
            _("pid {pid} {used}").format(pid=pid, used=card_text(used)) for pid, used in row.get("users", ())
        ) or _("outside this container")
        yield Finding(
            id="gpu-busy", title=_("a GPU's memory is in use"), level="warning",
            seen=_("{memory} of {total}: {users}").format
                (memory=card_text(total - free), total=card_text(total), users=users), where=f"GPU {row['number']}",
            remedy=_("ask its owner (`ps -o user,args -p PID`), then end it, or choose another GPU"),
            covers=("free-memory-below-utilization",),
        )  # fmt: skip


check_gpus = CheckGroup(checks=(_starts, _all_there, _managed, _memory))
"""What driver and NVML say is wrong."""


def check_gpu_kernels(facts: ProgramFacts, requirements: Requirements) -> Iterator[Finding]:
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


def _add_up(facts: ProgramFacts, count: int) -> Iterator[Finding]:
    last = facts.steps[-1] if facts.steps else None
    hangs = facts.exit_code is None and last is None
    if hangs or (last is not None and not last.get("ok")):
        yield Finding(
            id="nccl-self-test", title=_("{count} GPUs cannot add up a tensor over NCCL").format(count=count),
            seen=str(last.get("error")) if last else _("no answer in {seconds}").format
                (seconds=duration_text(facts.seconds)),
            where=_("NCCL"),
            remedy=_("NCCL_DEBUG=INFO shows the transport that fails; try NCCL_P2P_DISABLE=1, then "
"NCCL_SHM_DISABLE=1"),
        )  # fmt: skip


check_all_reduce = CheckGroup(checks=(_add_up,))
"""Why the GPUs could not add up a tensor together."""
