"""What a cluster asks of every node, as far as its target says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlbox.target.target import Target


@dataclass(frozen=True, kw_only=True)
class NodeNeeds:
    """What a node has to have; memory and space in GiB, 0 and an empty text ask nothing.

    `target` with the checksum `lock` is what a node without an engine has to be brought to, and `mount` is where a
    container of its image has the data disk.

    `free_gib` is free space of the data disk; `paths` are read by every node, and are to be
    the same there; `cluster` is the name of the one that is asked for.
    """

    gpus: int
    gpu: str
    gpu_memory_gib: float
    memory_gib: float
    cores: int
    free_gib: float
    cluster: str
    target: str
    lock: str
    mount: str
    paths: tuple[str, ...] = ()


def needs_of(target: Target, cluster: str, lock: str, paths: tuple[str, ...] = ()) -> NodeNeeds:
    """Return what a target asks of its nodes."""
    own = target.hardware
    return NodeNeeds(
        gpus=own.gpus,
        gpu=own.gpu,
        gpu_memory_gib=own.gpu_memory_gib,
        memory_gib=own.memory_gib,
        cores=own.cores,
        free_gib=target.disk.need_gib,
        cluster=cluster,
        target=target.name,
        lock=lock,
        mount=target.disk.mount,
        paths=paths,
    )
