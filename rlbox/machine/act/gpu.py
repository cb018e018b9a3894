"""Ask the GPUs' driver through NVML, without ever waiting for a driver that does not answer."""

from __future__ import annotations

import importlib
import threading
import time
from typing import Any

from rlbox.machine.counters import GpuFacts

_PATIENCE_S = 0.5
_LATELY_S = 5.0


class _Nvml:
    """One question at a time, asked in a thread: a call into a broken driver can block in the kernel for ever."""

    def __init__(self) -> None:
        self._absent = False
        self._asking: threading.Thread | None = None
        self._answer: tuple[GpuFacts, ...] = ()
        self._library: Any = None

    def ask(self) -> tuple[GpuFacts, ...]:
        if self._absent or (self._asking and self._asking.is_alive()):
            return ()
        self._answer = ()
        self._asking = threading.Thread(target=self._ask, name="nvml", daemon=True)
        self._asking.start()
        self._asking.join(_PATIENCE_S)
        return self._answer

    def _ask(self) -> None:
        try:
            if self._library is None:
                library: Any = importlib.import_module("pynvml")
                library.nvmlInit()
                self._library = library
        except Exception:  # no binding, no driver, or one that refuses: whatever it is, there are no GPU facts
            self._absent = True
            return
        self._answer = _gpus(self._library)


_nvml = _Nvml()


def probe_gpus() -> tuple[GpuFacts, ...]:
    """Return the GPUs by index; empty without a driver, or when it does not answer within half a second."""
    return _nvml.ask()


def _gpus(nvml: Any) -> tuple[GpuFacts, ...]:
    try:
        return tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError:
        return ()


def _gpu(nvml: Any, index: int) -> GpuFacts:
    device = nvml.nvmlDeviceGetHandleByIndex(index)

    def asked(name: str, otherwise: Any) -> Any:
        try:
            return getattr(nvml, name)(device)
        except nvml.NVMLError:  # not every card answers every question
            return otherwise

    memory = asked("nvmlDeviceGetMemoryInfo", None)
    name = asked("nvmlDeviceGetName", "")
    rates = asked("nvmlDeviceGetUtilizationRates", None)
    return GpuFacts(
        index=index,
        name=name.decode() if isinstance(name, bytes) else str(name),
        utilization=int(rates.gpu) if rates else 0,
        power_w=asked("nvmlDeviceGetPowerUsage", 0) / 1000,
        power_limit_w=asked("nvmlDeviceGetEnforcedPowerLimit", 0) / 1000,
        memory_bytes=int(memory.used) if memory else 0,
        total_bytes=int(memory.total) if memory else 0,
        memory_utilization=int(rates.memory) if rates else 0,
        processes=tuple(sorted(row.pid for row in asked("nvmlDeviceGetComputeRunningProcesses", ()))),
        shares=_shares(nvml, device),
    )


def _shares(nvml: Any, device: Any) -> tuple[tuple[int, int, int], ...]:
    """Return what each process used of a GPU in the last seconds; none where the driver does not tell."""
    since_us = int((time.time() - _LATELY_S) * 1e6)
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(device, since_us)
    except nvml.NVMLError:  # "not found" where no process used it
        return ()
    newest = {row.pid: row for row in sorted(samples, key=lambda row: row.timeStamp)}
    return tuple((pid, int(row.smUtil), int(row.memUtil)) for pid, row in sorted(newest.items()))
