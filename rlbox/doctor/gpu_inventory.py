"""`rlbox gpus`: GPUs of this machine and of Ray's nodes, who holds them, and whether those of two roles are there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlbox.amounts import gpu_gib_or_mib_text
from rlbox.doctor.ray_state import fetch_ray_nodes
from rlbox.errors import MachineError
from rlbox.i18n import _, join, translate
from rlbox.system.gpu import FIRMWARE_TIMEOUT_S, query_gpus_or_empty
from rlbox.system.process_table import find_process_owner_or_uid_or_empty, probe_process, read_cmdline_or_empty

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_BUSY_SHARE, _BUSY_BYTES = 0.1, 2 << 30  # of its memory; engines claim 90 %
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
class LocalAndRayGpus:
    """`visible_devices` is CUDA_VISIBLE_DEVICES, None where it is not set; `ray` is None where no head answers."""

    gpus: tuple[LocalGpu, ...]
    visible_devices: str | None = None
    ray: tuple[RayNode, ...] | None = None
    ray_error: str = ""

    def as_json(self) -> dict[str, Any]:
        ray = None if self.ray is None else [node._asdict() for node in self.ray]
        gpus = [gpu.as_json() for gpu in self.gpus]
        return {"gpus": gpus, "visible_devices": self.visible_devices, "ray": ray, "why_no_ray": self.ray_error}


def find_unmet_gpu_needs_or_busy_gpus(
    inventory: LocalAndRayGpus, *, actor_gpus: int = 0, rollout_gpus: int = 0, total_gpus: int = 0
) -> list[str]:
    """Return what is in the way of GPUs for training and generation, and of `total_gpus`, over all of Ray's nodes.

    Where nothing is asked for, every GPU must be free.
    """
    alive = [node for node in inventory.ray or () if node.alive]
    needed, wanted = actor_gpus + rollout_gpus, total_gpus or actor_gpus + rollout_gpus
    lost = _("Ray has lost node {node}")
    problems: list[str] = [lost.format(node=node.address) for node in inventory.ray or () if not node.alive]
    count = sum(node.gpus for node in alive)
    if inventory.ray is not None and count < wanted:
        listed = ", ".join(f"{node.address}: {node.gpus}" for node in alive)
        text = _("Ray counts {count} GPUs ({listed}), {wanted} are to be there: start it with --num-gpus")
        problems.append(text.format(count=count, listed=listed, wanted=wanted))
    if total_gpus and needed > total_gpus:
        text = _("actor and rollout want {needed} GPUs of {total}")
        problems.append(text.format(needed=needed, total=total_gpus))
    nodes = max(1, sum(node.gpus > 0 for node in alive))
    return [*_check_local_gpus(inventory, wanted // nodes, -(-needed // nodes)), *problems]


def _check_local_gpus(inventory: LocalAndRayGpus, wanted: int, needed: int) -> Iterator[str]:
    gpus, visible = inventory.gpus, inventory.visible_devices
    if not gpus:
        yield _("no GPU here: there is no driver, or it does not answer")
    if len(gpus) < wanted:
        text = _("{wanted} GPUs are to be on this machine, {count} are visible")
        if visible is not None:
            text = _("{wanted} GPUs are to be on this machine, {count} are visible, and {variable} hides others")
        yield text.format(wanted=wanted, count=len(gpus), variable=f"{VISIBLE_DEVICES}={visible}")
    elif visible is not None:
        names = [name for name in visible.split(",") if name.strip()]
        shown = names.index("-1") if "-1" in names else len(names)  # CUDA stops there
        if shown < wanted:
            text = _("{variable} shows {shown} GPUs to programs, {wanted} are to be used: unset it")
            yield text.format(variable=f"{VISIBLE_DEVICES}={visible}", shown=shown, wanted=wanted)
    free = sum(gpu.is_memory_nearly_unused for gpu in gpus)
    busy = [gpu for gpu in gpus if not gpu.is_memory_nearly_unused]
    held = join("; ", (join("", (f"GPU {gpu.index}: ", _format_holders(gpu))) for gpu in busy))
    if len(gpus) >= needed > free:
        text = _("{needed} GPUs are needed here, {free} are free: {held}")
        yield text.format(needed=needed, free=free, held=held)
    elif held and not wanted:
        yield _("{free} of {count} GPUs are free: {held}").format(free=free, count=len(gpus), held=held)


def _format_holders(gpu: LocalGpu) -> str:
    holders = join(", ", (join(" ", ("pid", pid, description)) for pid, description in gpu.holders.items()))
    return holders or _("someone outside this container")


def probe_local_and_ray_gpus(environ: Mapping[str, str], dashboard_url: str) -> LocalAndRayGpus:
    gpus, visible = probe_local_gpus(), environ.get(VISIBLE_DEVICES)
    try:
        nodes = tuple(map(_parse_node, fetch_ray_nodes(dashboard_url)))
    except MachineError as error:
        return LocalAndRayGpus(gpus=gpus, visible_devices=visible, ray_error=error.what)
    return LocalAndRayGpus(gpus=gpus, visible_devices=visible, ray=nodes)


def probe_local_gpus() -> tuple[LocalGpu, ...]:
    return tuple(
        LocalGpu(
            index=gpu.index,
            name=gpu.name,
            used_bytes=gpu.memory_bytes,
            total_bytes=gpu.total_bytes,
            holders={pid: _describe_process(pid) for pid in gpu.processes},
        )
        for gpu in query_gpus_or_empty(FIRMWARE_TIMEOUT_S)
    )


def _describe_process(pid: int) -> str:
    process = probe_process(pid)
    if process is None:
        return _("not visible from here (uid {uid})").format(uid=os.getuid())
    return f"{find_process_owner_or_uid_or_empty(pid)}: {(read_cmdline_or_empty(pid) or process.name)[:_MAX_COMMAND]}"


def _parse_node(node: Mapping[str, Any]) -> RayNode:
    resources = node.get("resourcesTotal")
    gpus = (resources.get("GPU") or resources.get("gpu") or 0) if isinstance(resources, dict) else 0
    return RayNode(str(node.get("nodeManagerAddress", "")), node.get("state") == "ALIVE", int(gpus))


def format_gpu_inventory(inventory: LocalAndRayGpus, problems: Sequence[str]) -> str:
    lines = []
    for gpu in inventory.gpus:
        state = translate(_("free") if gpu.is_memory_nearly_unused else _("held"))
        memory = _("{used} of {total}").format(
            used=gpu_gib_or_mib_text(gpu.used_bytes), total=gpu_gib_or_mib_text(gpu.total_bytes)
        )
        lines.append(f"GPU {gpu.index}  {state}  {gpu.name}  {translate(memory)}")
        lines += [f"       pid {pid}  {translate(description)}" for pid, description in gpu.holders.items()]
    for node in inventory.ray or ():
        state = translate(_("alive") if node.alive else _("lost"))
        lines.append(f"Ray    {state}  {node.address}  {node.gpus} GPUs")
    lines += [translate(_("wrong: {text}").format(text=text)) for text in problems]
    return "\n".join(lines)
