"""State of the GPUs through NVML, and of the driver through libcuda; a driver that hangs is never waited for."""

from __future__ import annotations

import ctypes
import glob
import importlib
import itertools
import threading
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

_SAMPLE_TIMEOUT_S = 0.5
FIRMWARE_TIMEOUT_S = 10.0  # without persistence mode the driver first loads its firmware, which takes seconds
_SHARE_WINDOW_S = 5.0


class ProcessGpuUsage(NamedTuple):
    """What a process had of a GPU of late: percent of its computing time, and of that of its memory."""

    pid: int
    compute_percent: int
    memory_percent: int


@dataclass(frozen=True, kw_only=True)
class GpuStatus:
    """One GPU now: `utilization` 0-100, `processes` their ids as the driver sees them (a container's may differ).

    `memory_utilization` (0-100) is the share of time in which its memory was read or written; `arch` is as
    compilers name it: sm_90.
    """

    index: int
    name: str
    utilization: int
    power_w: float
    power_limit_w: float
    memory_bytes: int
    total_bytes: int
    processes: tuple[int, ...]
    memory_utilization: int = 0
    uncorrected_errors: int = 0
    arch: str = ""
    shares: tuple[ProcessGpuUsage, ...] = ()

    @property
    def power_ratio(self) -> float:
        """The share of its power limit that it draws, 0-1."""
        return self.power_w / self.power_limit_w if self.power_limit_w else 0.0


class NvmlUnavailableError(Exception):
    """The management library refuses, or does not answer."""


@dataclass(frozen=True, kw_only=True)
class CudaDriver:
    """The NVIDIA driver of a host; `device_file_count` counts the device files of GPUs."""

    is_present: bool = False
    max_cuda_version: tuple[int, ...] = ()
    device_file_count: int = 0
    error: str = ""


class _Nvml:
    """Runs one query at a time, in a thread: a call into a broken driver can block in the kernel for ever."""

    def __init__(self) -> None:
        self._missing = False
        self.error = ""
        self._thread: threading.Thread | None = None
        self._library: Any = None

    def query(self, timeout_s: float) -> tuple[GpuStatus, ...]:
        if self._missing or (self._thread and self._thread.is_alive()):
            return ()
        answer: list[tuple[GpuStatus, ...]] = []
        self.error = f"no answer in {timeout_s:g} s"
        self._thread = threading.Thread(target=lambda: answer.append(self._read()), name="nvml", daemon=True)
        self._thread.start()
        self._thread.join(timeout_s)
        return answer[0] if answer else ()

    def _read(self) -> tuple[GpuStatus, ...]:
        try:
            if self._library is None:
                library: Any = importlib.import_module("pynvml")
                library.nvmlInit()
                self._library = library
        except Exception as error:  # no driver, or one that refuses, each with errors of its own
            self._missing, self.error = True, f"{type(error).__name__}: {error}"
            return ()
        try:
            found = tuple(_read_gpu(self._library, index) for index in range(self._library.nvmlDeviceGetCount()))
        except self._library.NVMLError as error:
            self.error = f"{type(error).__name__}: {error}"
            return ()
        self.error = ""
        return found


_nvml = _Nvml()


def query_gpus_or_empty(timeout_s: float = _SAMPLE_TIMEOUT_S) -> tuple[GpuStatus, ...]:
    """Return the GPUs by index; empty without a driver, or when it does not answer in time."""
    return _nvml.query(timeout_s)


def query_gpus_or_raise() -> tuple[GpuStatus, ...]:
    gpus = _nvml.query(FIRMWARE_TIMEOUT_S)
    if _nvml.error:
        raise NvmlUnavailableError(_nvml.error)
    return gpus


def probe_cuda_driver() -> CudaDriver:
    """Ask libcuda for the driver's version, which initialises nothing."""
    devices = len(glob.glob("/dev/nvidia[0-9]*"))
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return CudaDriver(is_present=devices > 0, device_file_count=devices, error=str(error) if devices else "")
    version = ctypes.c_int(0)
    code = library.cuDriverGetVersion(ctypes.byref(version))
    if code:
        return CudaDriver(is_present=True, device_file_count=devices, error=f"cuDriverGetVersion gives {code}")
    return CudaDriver(
        is_present=True, device_file_count=devices, max_cuda_version=(version.value // 1000, version.value % 1000 // 10)
    )


def find_pcie_p2p_gpu_bus_ids() -> set[str]:
    """Return the GPUs, as sysfs names them, that read another one's memory over PCIe, not NVLink; waits for NVML."""
    nvml: Any = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return {
            nvml.nvmlDeviceGetPciInfo(device).busId[-12:].lower()
            for device, peer in itertools.permutations(devices, 2)
            if nvml.nvmlDeviceGetP2PStatus(device, peer, nvml.NVML_P2P_CAPS_INDEX_READ) == nvml.NVML_P2P_STATUS_OK
            and nvml.nvmlDeviceGetP2PStatus(device, peer, nvml.NVML_P2P_CAPS_INDEX_NVLINK) != nvml.NVML_P2P_STATUS_OK
        }
    except nvml.NVMLError:
        return set()


def _read_gpu(nvml: Any, index: int) -> GpuStatus:
    device = nvml.nvmlDeviceGetHandleByIndex(index)

    def read(name: str, default: Any, *args: int) -> Any:
        try:
            return getattr(nvml, name)(device, *args)
        except nvml.NVMLError:  # not every GPU supports every query
            return default

    memory = read("nvmlDeviceGetMemoryInfo", None)
    rates = read("nvmlDeviceGetUtilizationRates", None)
    capability = read("nvmlDeviceGetCudaComputeCapability", None)
    return GpuStatus(
        index=index,
        name=str(read("nvmlDeviceGetName", "")),
        utilization=int(rates.gpu) if rates else 0,
        power_w=read("nvmlDeviceGetPowerUsage", 0) / 1000,
        power_limit_w=read("nvmlDeviceGetEnforcedPowerLimit", 0) / 1000,
        memory_bytes=int(memory.used) if memory else 0,
        total_bytes=int(memory.total) if memory else 0,
        memory_utilization=int(rates.memory) if rates else 0,
        uncorrected_errors=int(read("nvmlDeviceGetTotalEccErrors", 0, 1, 0)),
        arch="sm_{}{}".format(*capability) if capability else "",
        processes=tuple(sorted(process.pid for process in read("nvmlDeviceGetComputeRunningProcesses", ()))),
        shares=_read_shares(nvml, device),
    )


def _read_shares(nvml: Any, device: Any) -> tuple[ProcessGpuUsage, ...]:
    since_us = int((time.time() - _SHARE_WINDOW_S) * 1e6)
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(device, since_us)
    except nvml.NVMLError:  # "not found" where no process used it
        return ()
    newest = {sample.pid: sample for sample in sorted(samples, key=lambda sample: sample.timeStamp)}
    return tuple(
        ProcessGpuUsage(pid, int(sample.smUtil), int(sample.memUtil)) for pid, sample in sorted(newest.items())
    )
