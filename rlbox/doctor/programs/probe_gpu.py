"""Run by the stack's own interpreter: what driver and management library say of the GPUs, one JSON object a line.

The driver is asked by its own library and NVML by nvidia-ml-py where the stack has it; no program's text is read.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
from typing import Any


def say(step: str, **facts: Any) -> None:
    """Write one step's outcome."""
    sys.stdout.write(json.dumps({"step": step, **facts}) + "\n")
    sys.stdout.flush()


def ask_driver() -> None:
    """Initialise CUDA, and say which library answered, how many devices it has and which CUDA it takes."""
    cuda = ctypes.CDLL("libcuda.so.1")
    version, count = ctypes.c_int(0), ctypes.c_int(0)
    cuda.cuDriverGetVersion(ctypes.byref(version))
    code = cuda.cuInit(0)
    if code == 0:
        cuda.cuDeviceGetCount(ctypes.byref(count))
    name = ctypes.c_char_p()
    cuda.cuGetErrorName(code, ctypes.byref(name))
    said = (name.value or b"").decode()
    say("driver", ok=code == 0, code=code, name=said, cuda=version.value, count=count.value, library=loaded())


def loaded() -> str:
    """Return the file that the loader took for libcuda.so.1."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        found = [line.split()[-1] for line in file if "libcuda.so" in line]
    return os.path.realpath(found[0]) if found else ""


def ask_nvml() -> None:
    """Say of each GPU its memory, its errors and who uses it."""
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    for number in range(nvml.nvmlDeviceGetCount()):
        device = nvml.nvmlDeviceGetHandleByIndex(number)
        memory = nvml.nvmlDeviceGetMemoryInfo(device)
        users = [(row.pid, int(row.usedGpuMemory or 0)) for row in nvml.nvmlDeviceGetComputeRunningProcesses(device)]
        say(
            "memory",
            ok=True,
            number=number,
            total=memory.total,
            free=memory.free,
            users=users,
            bad=errors(nvml, device),
        )


def errors(nvml: Any, device: Any) -> int:
    """Return the uncorrected memory errors since the driver was loaded; cards without ECC have none."""
    try:
        return int(nvml.nvmlDeviceGetTotalEccErrors(device, 1, 0))
    except nvml.NVMLError:
        return 0


def main() -> None:
    """Ask both; a missing nvidia-ml-py is no fault."""
    try:
        ask_driver()
    except OSError as error:
        say("driver", ok=False, code=-1, name=str(error), cuda=0, count=0, library="")
    try:
        ask_nvml()
    except ImportError:
        pass
    except Exception as error:
        say("nvml", ok=False, error=f"{type(error).__name__}: {error}")
    say("end", ok=True)


if __name__ == "__main__":
    main()
