"""Run by the stack's own interpreter: import torch, calculate on CPU and GPUs, load compiled extensions.

It writes one JSON object a line, so that what it reached is known when it dies: {"step": "import", "ok": true, …}.
Argument: `extensions`, to load compiled extensions.
Nothing of rlbox is imported; torch is imported by name, for rlbox lives without it.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import json
import mmap
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

tl: Any = None  # Triton looks for its language among the names of the module that a kernel is in


def _emit(step: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"step": step, **facts}) + "\n")
    sys.stdout.flush()


def _format_error(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:500]


def _import_torch() -> Any:
    began = time.monotonic()
    torch = importlib.import_module("torch")
    _emit(
        "import",
        ok=True,
        file=torch.__file__,
        version=torch.__version__,
        cuda=torch.version.cuda or "",
        seconds=round(time.monotonic() - began, 2),
    )
    return torch


def _multiply_on_cpu(torch: Any) -> None:
    numpy = importlib.import_module("numpy")
    left = torch.from_numpy(numpy.full((64, 64), 2.0, dtype="float32"))
    total = float((left @ torch.ones(64, 64)).sum())
    _emit("cpu", ok=total == 2.0 * 64**3, error="" if total == 2.0 * 64**3 else f"a product of matrices is {total}")


def _multiply_on_gpus(torch: Any) -> None:
    if not torch.version.cuda and not getattr(torch.version, "hip", None):
        return
    if not torch.cuda.is_available():
        _emit("gpu", ok=False, count=0, error="torch.cuda.is_available() is False", archs=torch.cuda.get_arch_list())
        return
    for number in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(number)
        facts = {
            "number": number,
            "name": torch.cuda.get_device_name(number),
            "arch": f"sm_{major}{minor}",
            "archs": torch.cuda.get_arch_list(),
        }
        try:
            ones = torch.ones(256, 256, device=f"cuda:{number}")
            total = float((ones @ ones).sum())
            _emit("gpu", ok=total == 256.0**3, error="" if total == 256.0**3 else f"a product is {total}", **facts)
        except Exception as error:
            _emit("gpu", ok=False, error=_format_error(error), **facts)


def _add_one(pointer, length):  # type: ignore[no-untyped-def]  # Triton reads the words of a function, and its own types
    places = tl.arange(0, 128)
    inside = places < length
    tl.store(pointer + places, tl.load(pointer + places, mask=inside) + 1, mask=inside)


def _compile_kernel(torch: Any) -> None:
    """Let Triton compile and run one kernel, which needs a C compiler and the driver's library."""
    if not torch.version.cuda or not torch.cuda.is_available():
        return
    try:
        triton = importlib.import_module("triton")
    except ImportError:
        return
    globals()["tl"] = importlib.import_module("triton.language")
    numbers = torch.zeros(100, device="cuda")
    try:
        triton.jit(_add_one)[(1,)](numbers, 100)
        _emit("triton", ok=bool((numbers == 1).all()), error="")
    except Exception as error:
        _emit("triton", ok=False, error=_format_error(error))


def list_top_level_and_torch_shared_libraries(site: Path) -> list[str]:
    """Return the libraries that use torch, of packages that want it, and all that lie beside the packages."""
    found = {str(path) for path in site.glob("*.so")}
    for package in importlib.metadata.distributions(path=[str(site)]):
        if any(re.match(r"torch(?![\w.-])(?!.*extra ==)", wanted) for wanted in package.requires or ()):
            files = {str(package.locate_file(file)) for file in package.files or () if file.suffix == ".so"}
            found |= {path for path in files if _uses_torch(path)}
    return sorted(found)


def _uses_torch(path: str) -> bool:
    if not os.path.isfile(path) or not os.path.getsize(path):
        return False
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(b"N3c10") != -1


def _load_extensions(paths: list[str]) -> None:
    """Load every extension as an import does, each in a process of its own: a broken one may end it."""
    for path in paths:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            try:
                ctypes.CDLL(path, os.RTLD_NOW | os.RTLD_LOCAL)
            except BaseException as error:
                os.write(writer, _format_error(error).encode()[:2000])
            os.kill(os.getpid(), 9)  # no exit handler of what was loaded is run
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            error_text = pipe.read().decode("utf-8", "replace")
        _, status = os.waitpid(child, 0)
        number = status & 0x7F
        _emit(
            "load", ok=not error_text and number == 9, path=path, error=error_text, signal=0 if number == 9 else number
        )


def _main() -> None:
    step = "import"
    os.nice(5)  # Ray beside it is a chain of processes that wait for each other
    try:
        torch = _import_torch()
        step = "cpu"
        _multiply_on_cpu(torch)
        step = "load"
        if sys.argv[1:] == ["extensions"]:
            _load_extensions(list_top_level_and_torch_shared_libraries(Path(torch.__file__).parents[1]))
        step = "gpu"
        _multiply_on_gpus(torch)
        step = "triton"
        _compile_kernel(torch)
    except BaseException as error:
        _emit(step, ok=False, error=_format_error(error))
    _emit("end", ok=True)


if __name__ == "__main__":
    _main()
