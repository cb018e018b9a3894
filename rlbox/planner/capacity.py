"""What a machine has room for: GPUs and their memory, host memory, data disk; as its target says, or as measured."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from rlbox.amounts import GIB
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.target.target import Target

REPORTED = 0.97
"""Part of its nominal memory that a card reports at least."""
_KNOWN = {
    "NVIDIA GeForce RTX 5090": 31.8,
    "NVIDIA GeForce RTX 4090": 23.9,
    "NVIDIA RTX PRO 6000 Blackwell": 95.5,
    "NVIDIA A100": 80.0,
    "NVIDIA H100": 79.6,
    "NVIDIA H200": 140.4,
    "NVIDIA B200": 179.0,
}
"""GiB that cards report of what they are sold with. Source: nvidia-smi, 32,607 MiB of "32 GB", and so on."""
CONTEXT = 0.9 * GIB
"""Bytes of a card that CUDA's context and NCCL keep for themselves. Assumed, not measured."""
IDLE = GIB
"""Bytes of a card that its driver and a display may hold while nobody computes on it. Assumed, not measured."""

_MACHINE = re.compile(r"(?:(\d+)x)?(\d+)x(\d+(?:\.\d+)?)")


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What there is; bytes, of one machine and one GPU. 0 says that nobody knows; -1 GPUs are all, however many.

    `source_label` is said when something does not fit; `used_bytes_of_fullest_gpu` is what others hold of the fullest
    GPU. `source` says who told of it: the target, a measurement, or a machine of the command line.
    """

    source_label: str
    source: Literal["target", "measured", "command_line"] = "target"
    nodes: int = 1
    gpus_per_node: int = 0
    bytes_per_gpu: float = 0.0
    used_bytes_of_fullest_gpu: float = 0.0
    host_bytes_per_node: float = 0.0
    disk_bytes: float = 0.0


def estimate_reported_gpu_bytes(gpu_name: str, nominal_gib: float) -> float:
    """Return what a card reports of the memory that it is sold with."""
    known = _KNOWN.get(gpu_name, 0.0)
    # a target may say of its card what the card itself does
    return GIB * (min(known, nominal_gib) if known else nominal_gib * REPORTED)


def declare_capacity(target: Target, gpus: int) -> Capacity:
    """Return the room that a target declares; `gpus` are those that a container gets.

    A `need_gib` of 1, the default, says nothing of the disk.
    """
    hardware = target.hardware
    limits = [size for size in (hardware.memory_gib, target.run.memory_gib) if size]
    return Capacity(
        source_label=f"images/{target.name}/target.toml",
        nodes=hardware.nodes,
        gpus_per_node=gpus,
        bytes_per_gpu=estimate_reported_gpu_bytes(hardware.gpu, hardware.gpu_memory_gib),
        host_bytes_per_node=GIB * min(limits, default=0.0),
        disk_bytes=GIB * target.disk.need_gib if target.disk.need_gib > 1 else 0.0,
    )


def parse_machine(gpus_x_gb: str, host_and_disk: Capacity) -> Capacity:
    """Return the room of `4x32` (GPUs x GB of a card) or `2x8x80` (nodes too)."""
    found = _MACHINE.fullmatch(gpus_x_gb)
    if not found or not all(float(part) for part in found.groups() if part):
        raise SpecError(
            _("invalid --machine {text!r}").format(text=gpus_x_gb),
            next_step=_("use GPUSxGB: 4x32, 2x8x80 for two nodes"),
        )
    nodes, gpus, sold = found.groups()
    # 31.8 of 32 GB, sold as either, is what the table knows; any other card has its least
    known = "NVIDIA GeForce RTX 5090"
    card = estimate_reported_gpu_bytes(known if _KNOWN[known] <= float(sold) <= 32 else "", float(sold))
    return Capacity(
        source_label=f"--machine {gpus_x_gb}",
        source="command_line",
        nodes=int(nodes or 1),
        gpus_per_node=int(gpus),
        bytes_per_gpu=card,
        host_bytes_per_node=host_and_disk.host_bytes_per_node,
        disk_bytes=host_and_disk.disk_bytes,
    )
