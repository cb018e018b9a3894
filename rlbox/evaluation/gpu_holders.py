"""Which GPUs are here, whose processes are on them, and how many Ray counts."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Mapping
from typing import Any

from rlbox.doctor.ray_state import read_ray_nodes
from rlbox.evaluation.gpu_split import GpusHere, GpuState, GpuUser, RayNode
from rlbox.system.gpu import GpuStatus, probe_gpus
from rlbox.system.process_table import find_process_owner, probe_command_line, probe_process

_WORDS = 60
_DRIVER_S = 10.0  # a driver without persistence mode sets eight cards up first
VISIBLE = "CUDA_VISIBLE_DEVICES"


def probe_gpu_facts(environ: Mapping[str, str], dashboard: str) -> GpusHere:
    """Return the facts; `dashboard` is the URL of a Ray head's dashboard."""
    gpus = probe_gpu_states()
    rows = read_ray_nodes(dashboard)
    visible = environ.get(VISIBLE)
    if isinstance(rows, str):
        return GpusHere(gpus=gpus, visible=visible, why_no_ray=rows)
    return GpusHere(gpus=gpus, visible=visible, ray=tuple(map(_node, rows)))


def probe_gpu_states() -> tuple[GpuState, ...]:
    """Return the GPUs of this machine and who holds them."""
    return tuple(
        GpuState(
            index=gpu.index,
            name=gpu.name,
            used=gpu.memory_bytes,
            total=gpu.total_bytes,
            holders=tuple(GpuUser(pid=pid, who=_who(pid)) for pid in gpu.processes),
        )
        for gpu in _gpus()
    )


def _gpus() -> tuple[GpuStatus, ...]:
    """Return the GPUs; where there are device files, the driver is given time to answer."""
    end = time.monotonic() + (_DRIVER_S if glob.glob("/dev/nvidia[0-9]*") else 0)
    while not (found := probe_gpus()) and time.monotonic() < end:
        time.sleep(0.2)
    return found


def _node(row: Mapping[str, Any]) -> RayNode:
    resources = row.get("resourcesTotal")
    gpus = (resources.get("GPU") or resources.get("gpu") or 0) if isinstance(resources, dict) else 0
    return RayNode(address=str(row.get("nodeManagerAddress", "")), alive=row.get("state") == "ALIVE", gpus=int(gpus))


def _who(pid: int) -> str:
    process = probe_process(pid)
    if process is None:
        return f"not visible from here (uid {os.getuid()})"
    return f"{find_process_owner(pid)}: {(probe_command_line(pid) or process.name)[:_WORDS]}"
