"""Ask a host's engine and driver; CUDA is asked by its own library, never by the text of a program."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import glob
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlbox.doctor.judge.host import Card, Container, DriverFacts, EngineFacts
from rlbox.engine.act.address import engine_address, engine_is_here
from rlbox.engine.act.gpu_access import probe_offer
from rlbox.engine.container import OWNER_LABEL, RUN_LABEL, TARGET_LABEL
from rlbox.errors import EngineError, NodeError
from rlbox.files.act.beneath import is_file
from rlbox.files.act.room import free_bytes
from rlbox.foreign import whole_number
from rlbox.machine.act.identity import in_image
from rlbox.record.act.disk_hold import LOCK_FILE, disk_holder


def probe_engine() -> EngineFacts:
    """Return the state of the engine and of rlbox's containers."""
    from rlbox.engine.act.api import engine

    try:
        info, containers = engine().info(), engine().list_containers(TARGET_LABEL)
    except EngineError as error:
        return EngineFacts(error=error.what, where=error.where, remedy=error.next_step)
    root = str(info.get("DockerRootDir", ""))
    return EngineFacts(
        where=engine_address(),
        version=_numbers(str(info.get("ServerVersion", ""))),
        gpu_ways=probe_offer(info, engine_address(), here=engine_is_here() and not in_image()).ways,
        root=root,
        room=free_bytes(Path(root)) if root and engine_is_here() and Path(root).is_dir() else None,
        containers=tuple(map(_container, containers)),
        clock_s=_skew(str(info.get("SystemTime", ""))),
    )


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.partition("+")[0].partition("-")[0].split(".")
    return tuple(number for part in parts if (number := whole_number(part)) is not None)


def _container(row: Mapping[str, Any]) -> Container:
    labels = row.get("Labels") or {}
    names = [str(name).lstrip("/") for name in row.get("Names") or ()]
    return Container(
        name=names[0] if names else str(row.get("Id", ""))[:12],
        run=str(labels.get(RUN_LABEL, "")),
        state=str(row.get("State", "")),
        owner=f"uid {labels.get(OWNER_LABEL, 'unknown')}",
        busy=any(_may_be_held(Path(str(mount.get("Source", "")))) for mount in row.get("Mounts") or ()),
    )


def _may_be_held(folder: Path) -> bool:
    """Return whether a living rlbox holds a folder as its data disk; one that cannot be asked may be held."""
    try:
        return is_file(folder.resolve() / LOCK_FILE) and disk_holder(folder.resolve()) is not None
    except (OSError, NodeError):
        return True


def _skew(text: str) -> float:
    """Return how far the engine's clock is ahead, seconds; its answer has more digits than Python reads."""
    with contextlib.suppress(ValueError):
        told = datetime.datetime.strptime(text[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=datetime.timezone.utc)
        zone = text[19:].lstrip(".0123456789")
        return told.timestamp() - time.time() if zone == "Z" else 0.0
    return 0.0


def probe_driver() -> DriverFacts:
    """Return what the NVIDIA driver says of itself; nothing is initialised."""
    devices = len(glob.glob("/dev/nvidia[0-9]*"))
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return DriverFacts(present=devices > 0, devices=devices, error=str(error) if devices else "")
    version = ctypes.c_int(0)
    code = library.cuDriverGetVersion(ctypes.byref(version))
    if code:
        return DriverFacts(present=True, devices=devices, error=f"cuDriverGetVersion gives {code}")
    return DriverFacts(present=True, devices=devices, cuda=(version.value // 1000, version.value % 1000 // 10))


def probe_cards() -> tuple[Card, ...]:
    """Return the GPUs as NVML tells them; empty without a driver, or with one that does not answer."""
    import importlib

    nvml: Any = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        return tuple(_card(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError:
        return ()


def _card(nvml: Any, device: Any) -> Card:
    name, (major, minor) = nvml.nvmlDeviceGetName(device), nvml.nvmlDeviceGetCudaComputeCapability(device)
    return Card(name=name.decode() if isinstance(name, bytes) else str(name), arch=f"sm_{major}{minor}")
