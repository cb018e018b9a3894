"""`rlbox gpus`: GPUs of this machine and of Ray's nodes, who holds them, and whether a split between two roles fits.

Source: `diagnose_gpu_allocation.py --actor-gpus 2 --rollout-gpus 2 --total-gpus 8`; verl's GKD recipe gives
the two roles GPUs of their own, an equal number on each node (`trainer.n_gpus_per_node`, `rollout.n_gpus_per_node`).
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlbox.amounts import gpu_memory_text
from rlbox.doctor.ray_state import fetch_ray_nodes
from rlbox.errors import NodeError
from rlbox.system.gpu import probe_gpus
from rlbox.system.process_table import find_process_owner, probe_command_line, probe_process

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_BUSY_SHARE, _BUSY_BYTES = 0.1, 2 << 30  # of its memory; engines claim 90 %
_DRIVER_TIMEOUT_S = 10.0  # a driver without persistence mode sets eight cards up first
_MAX_COMMAND = 60


@dataclass(frozen=True, kw_only=True)
class LocalGpu:
    """A GPU of this machine, its memory and who uses it.

    `holders` map ids of processes to user and command, or why these are not known.
    """

    index: int
    name: str
    used_bytes: int
    total_bytes: int
    holders: Mapping[int, str] = field(default_factory=dict)

    @property
    def is_memory_nearly_unused(self) -> bool:
        return self.used_bytes <= max(_BUSY_SHARE * self.total_bytes, _BUSY_BYTES)

    def as_json(self) -> dict[str, Any]:
        holders = [{"pid": pid, "who": description} for pid, description in self.holders.items()]
        memory = {"used": self.used_bytes, "total": self.total_bytes, "free": self.is_memory_nearly_unused}
        return {"index": self.index, "name": self.name, "holders": holders, **memory}


class RayNode(NamedTuple):
    address: str
    alive: bool
    gpus: int


@dataclass(frozen=True, kw_only=True)
class GpuInventory:
    """`visible_devices` is CUDA_VISIBLE_DEVICES, None where it is not set; `ray` is None where no head answers."""

    gpus: tuple[LocalGpu, ...]
    visible_devices: str | None = None
    ray: tuple[RayNode, ...] | None = None
    ray_error: str = ""

    def as_json(self) -> dict[str, Any]:
        ray = None if self.ray is None else [node._asdict() for node in self.ray]
        gpus = [gpu.as_json() for gpu in self.gpus]
        return {"gpus": gpus, "visible_devices": self.visible_devices, "ray": ray, "why_no_ray": self.ray_error}


@dataclass(frozen=True, kw_only=True)
class GpuSplitRequest:
    """GPUs for training and for generation, and how many must be there, over all nodes."""

    actor: int = 0
    rollout: int = 0
    required_total: int | None = None
    nodes: int = 1
    colocated: bool = False

    @property
    def gpus_by_role(self) -> dict[str, int]:
        if self.colocated:
            return {"actor and rollout": max(self.actor, self.rollout)}
        return {"actor": self.actor, "rollout": self.rollout}

    @property
    def needed(self) -> int:
        return sum(self.gpus_by_role.values())


class RolePlacement(NamedTuple):
    role: str
    node: int
    gpus: int


@dataclass(frozen=True, kw_only=True)
class SplitPlan:
    placements: tuple[RolePlacement, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def plan_split(inventory: GpuInventory, request: GpuSplitRequest) -> SplitPlan:
    capacity = [len(inventory.gpus)] * request.nodes
    if request.required_total:
        capacity = [request.required_total // request.nodes] * request.nodes
    elif inventory.ray:
        capacity = [node.gpus for node in inventory.ray if node.alive and node.gpus]
    placements, unplaced = _place_roles(request, capacity)
    problems = [*_check_local_gpus(inventory, request), *_check_ray(inventory, request), *unplaced]
    notes = []
    if request.needed and not problems and (idle := sum(capacity) - request.needed) > 0:
        notes.append(f"{idle} of {sum(capacity)} GPUs stay idle")
    if request.needed and inventory.ray is None:
        notes.append(f"Ray is not up, so its view is not known: {inventory.ray_error}")
    return SplitPlan(placements=tuple(placements), problems=tuple(problems), notes=tuple(notes))


def _place_roles(request: GpuSplitRequest, capacity: Sequence[int]) -> tuple[list[RolePlacement], list[str]]:
    """Place each role, the larger first, on as few nodes as have room for equal parts of it."""
    free = dict(enumerate(capacity))
    placements, problems = [], []
    if request.required_total and request.required_total % request.nodes:
        problems.append(f"{request.required_total} GPUs are no equal number on each of {request.nodes} nodes")
    for role, count in sorted(request.gpus_by_role.items(), key=lambda item: -item[1]):
        nodes = _choose_nodes(count, free)
        if count and not nodes:
            room = ", ".join(f"node {node}: {number}" for node, number in free.items()) or "none"
            problems.append(f"{role} wants {count} GPUs, an equal number a node; left are {room}")
        for node in nodes if count else ():
            free[node] -= count // len(nodes)
            placements.append(RolePlacement(role, node, count // len(nodes)))
    return placements, problems


def _choose_nodes(count: int, free: Mapping[int, int]) -> list[int]:
    for number in range(1, len(free) + 1):
        nodes = [node for node, gpus in free.items() if count % number == 0 and gpus >= count // number]
        if len(nodes) >= number:
            return nodes[:number]
    return []


def _check_local_gpus(inventory: GpuInventory, request: GpuSplitRequest) -> Iterator[str]:
    """Yield what this machine lacks of its share; where nothing is requested, every GPU must be free."""
    gpus, visible = inventory.gpus, inventory.visible_devices
    if not gpus:
        yield "no GPU here: there is no driver, or it does not answer"
    share = (request.required_total or request.needed) // request.nodes
    if len(gpus) < share:
        hidden = f", and {VISIBLE_DEVICES}={visible} hides others" if visible is not None else ""
        yield f"{share} GPUs are to be on this machine, {len(gpus)} are visible{hidden}"
    elif visible is not None:
        names = [name for name in visible.split(",") if name.strip()]
        shown = names.index("-1") if "-1" in names else len(names)  # CUDA stops there
        if shown < share:
            yield f"{VISIBLE_DEVICES}={visible} shows {shown} GPUs to programs, {share} are to be used: unset it"
    needed = -(-request.needed // request.nodes)
    free = sum(gpu.is_memory_nearly_unused for gpu in gpus)
    held = "; ".join(f"GPU {gpu.index}: {_format_holders(gpu)}" for gpu in gpus if not gpu.is_memory_nearly_unused)
    if len(gpus) >= needed > free:
        yield f"{needed} GPUs are needed here, {free} are free: {held}"
    elif held and not (request.needed or request.required_total):
        yield f"{free} of {len(gpus)} GPUs are free: {held}"


def _check_ray(inventory: GpuInventory, request: GpuSplitRequest) -> Iterator[str]:
    nodes = inventory.ray or ()
    yield from (f"Ray has lost node {node.address}" for node in nodes if not node.alive)
    alive, wanted = [node for node in nodes if node.alive], request.required_total or request.needed
    count = sum(node.gpus for node in alive)
    if inventory.ray is not None and count < wanted:
        listed = ", ".join(f"{node.address}: {node.gpus}" for node in alive)
        yield f"Ray counts {count} GPUs ({listed}), {wanted} are to be there: start it with --num-gpus"


def _format_holders(gpu: LocalGpu) -> str:
    holders = ", ".join(f"pid {pid} {description}" for pid, description in gpu.holders.items())
    return holders or "someone outside this container"


def probe_inventory(environ: Mapping[str, str], dashboard: str) -> GpuInventory:
    gpus, visible = probe_local_gpus(), environ.get(VISIBLE_DEVICES)
    try:
        nodes = tuple(map(_parse_node, fetch_ray_nodes(dashboard)))
    except NodeError as error:
        return GpuInventory(gpus=gpus, visible_devices=visible, ray_error=error.what)
    return GpuInventory(gpus=gpus, visible_devices=visible, ray=nodes)


def probe_local_gpus() -> tuple[LocalGpu, ...]:
    """Return the GPUs; where there are device files, the driver is given time to answer."""
    deadline = time.monotonic() + (_DRIVER_TIMEOUT_S if glob.glob("/dev/nvidia[0-9]*") else 0)
    while not (gpus := probe_gpus()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return tuple(
        LocalGpu(
            index=gpu.index,
            name=gpu.name,
            used_bytes=gpu.memory_bytes,
            total_bytes=gpu.total_bytes,
            holders={pid: _describe_process(pid) for pid in gpu.processes},
        )
        for gpu in gpus
    )


def _describe_process(pid: int) -> str:
    process = probe_process(pid)
    if process is None:
        return f"not visible from here (uid {os.getuid()})"
    return f"{find_process_owner(pid)}: {(probe_command_line(pid) or process.name)[:_MAX_COMMAND]}"


def _parse_node(node: Mapping[str, Any]) -> RayNode:
    resources = node.get("resourcesTotal")
    gpus = (resources.get("GPU") or resources.get("gpu") or 0) if isinstance(resources, dict) else 0
    return RayNode(str(node.get("nodeManagerAddress", "")), node.get("state") == "ALIVE", int(gpus))


def format_inventory(inventory: GpuInventory, plan: SplitPlan) -> str:
    lines = []
    for gpu in inventory.gpus:
        state = "free" if gpu.is_memory_nearly_unused else "held"
        used, total = gpu_memory_text(gpu.used_bytes), gpu_memory_text(gpu.total_bytes)
        lines.append(f"GPU {gpu.index}  {state}  {gpu.name}  {used} of {total}")
        lines += [f"       pid {pid}  {description}" for pid, description in gpu.holders.items()]
    for node in inventory.ray or ():
        lines.append(f"Ray    {'alive' if node.alive else 'lost'}  {node.address}  {node.gpus} GPUs")
    lines += [f"node {place.node}  {place.role}: {place.gpus} GPUs" for place in plan.placements]
    lines += [f"note: {text}" for text in plan.notes]
    lines += [f"wrong: {text}" for text in plan.problems]
    return "\n".join(lines)
