"""Ask an engine, and the machine it is on, which ways to a GPU they offer."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlbox.engine.gpu_access import KIND, GpuOffer
from rlbox.values import Mount

# Where the toolkit and the engine look for specifications; source: Docker's `cdi-spec-dirs`, CDI's SPEC.md.
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
_CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
_LIBRARY_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib")
_IN_CONTAINER = "/usr/lib/x86_64-linux-gnu"  # searched by the loader of Debian and Ubuntu without any cache
# What the toolkit mounts for the capabilities compute and utility; source: nvidia-container-toolkit, pkg/nvcdi/driver.
_LIBRARIES = (
    "libcuda.so.1", "libcudadebugger.so.1", "libnvidia-ml.so.1", "libnvidia-cfg.so.1", "libnvidia-opencl.so.1",
    "libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4", "libnvidia-nvvm70.so.4",
)  # fmt: skip
_VERSIONED = ("libnvidia-gpucomp.so.*", "libnvidia-allocator.so.1", "libnvidia-pkcs11*.so.*")
_HOOK = "nvidia-container-runtime-hook"  # an engine that finds it takes `--gpus` without a runtime of that name


def probe_offer(info: Mapping[str, Any], where: str, *, here: bool) -> GpuOffer:
    """Return what is offered by the engine that gave `info` (its `/info`) at the address `where`.

    Parameters
    ----------
    here
        The engine is on this machine, so its files and devices can be looked at.
    """
    folders = tuple(info.get("CDISpecDirs") or ())
    files = tuple(_spec_files(folders or CDI_FOLDERS)) if here else ()
    texts = [_text(path) for path in files]
    told = [str(row.get("ID", "")) for row in info.get("DiscoveredDevices") or ()]  # since Docker 28.2
    names = [name for name in told if name.startswith(f"{KIND}=")] or [name for text in texts for name in devices(text)]
    named = [path for text in texts for path in host_paths(text)]
    return GpuOffer(
        where=where,
        here=here,
        runtime=any("nvidia" in name for name in info.get("Runtimes") or ()) or (here and bool(shutil.which(_HOOK))),
        cdi_on=bool(folders),
        cdi=tuple(dict.fromkeys(names)),
        cdi_files=files,
        stale=next((path for path in named if not os.path.lexists(path)), ""),
        nodes=tuple(sorted(glob.glob("/dev/nvidia[0-9]*"), key=lambda node: int(node[11:]))) if here else (),
        control=tuple(node for node in _CONTROL if os.path.exists(node)) if here else (),
        driver=tuple(_driver()) if here else (),
    )


def devices(text: str) -> list[str]:
    """Return the names of NVIDIA's GPUs in a CDI specification (JSON, or YAML as the toolkit writes it)."""
    kind, names, _ = _read(text)
    return [f"{KIND}={name}" for name in names] if kind == KIND else []


def host_paths(text: str) -> list[str]:
    kind, _, paths = _read(text)
    return paths if kind == KIND else []


def _read(text: str) -> tuple[str, list[str], list[str]]:
    import yaml

    try:
        spec = yaml.safe_load(text)  # JSON is YAML
    except yaml.YAMLError:
        spec = None
    if not isinstance(spec, dict):
        return "", [], []
    rows = spec.get("devices") or ()
    edits = [row.get("containerEdits") or {} for row in (spec, *rows)]
    paths = [str(mount["hostPath"]) for edit in edits for mount in edit.get("mounts") or ()]
    return str(spec.get("kind", "")), [str(row["name"]) for row in rows], paths


def _spec_files(folders: tuple[str, ...]) -> Iterator[str]:
    for folder in folders:
        yield from sorted(path for kind in ("yaml", "yml", "json") for path in glob.glob(f"{folder}/*.{kind}"))


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _driver() -> Iterator[Mount]:
    """Yield the driver's libraries and `nvidia-smi`, each at a place where a container finds it without any setting."""
    found = next((path for path in _LIBRARY_FOLDERS if os.path.exists(f"{path}/libcuda.so.1")), "")
    if not found:
        return
    names = [name for name in _LIBRARIES if os.path.exists(f"{found}/{name}")]
    names += [os.path.basename(path) for pattern in _VERSIONED for path in sorted(glob.glob(f"{found}/{pattern}"))]
    for name in names:
        yield Mount(source=os.path.realpath(f"{found}/{name}"), target=f"{_IN_CONTAINER}/{name}", read_only=True)
    programs = (f"{os.path.dirname(found)}/bin/nvidia-smi", shutil.which("nvidia-smi") or "")
    for program in programs:
        if os.path.isfile(program):
            yield Mount(source=os.path.realpath(program), target="/usr/bin/nvidia-smi", read_only=True)
            return
