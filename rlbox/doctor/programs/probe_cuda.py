"""Run by the stack's own interpreter: how CUDA starts in its environment, one JSON object a line."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any


def _emit(step: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"step": step, **facts}) + "\n")
    sys.stdout.flush()


def _probe_driver() -> None:
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
    _emit("driver", ok=code == 0, code=code, name=said, cuda=version.value, count=count.value, library=_libcuda_path())


def _libcuda_path() -> str:
    with open("/proc/self/maps", encoding="utf-8") as file:
        found = [line.split()[-1] for line in file if "libcuda.so" in line]
    return os.path.realpath(found[0]) if found else ""


def _main() -> None:
    try:
        _probe_driver()
    except OSError as error:
        _emit("driver", ok=False, code=-1, name=str(error), cuda=0, count=0, library="")
    _emit("end", ok=True)


if __name__ == "__main__":
    _main()
