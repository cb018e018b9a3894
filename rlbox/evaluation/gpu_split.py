"""GPUs of this machine and of Ray's nodes: who holds them, and whether a split between roles or engines fits.

Source: notes 003, `diagnose_gpu_allocation.py --actor-gpus 2 --rollout-gpus 2 --total-gpus 8`; verl's GKD recipe gives
the two roles GPUs of their own, an equal number on each node (`trainer.n_gpus_per_node`, `rollout.n_gpus_per_node`).
"""

from __future__ import annotations

import glob
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlbox.amounts import card_text
from rlbox.doctor.ray_state import fetch_ray_nodes
from rlbox.errors import NodeError
from rlbox.i18n import _
from rlbox.system.gpu import GpuStatus, probe_gpus
from rlbox.system.process_table import find_process_owner, probe_command_line, probe_process

_BUSY = 0.1  # of its memory; engines claim 90 %
_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process on a GPU; `who` is its user and command, or why they are not known."""

    pid: int
    who: str


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """A GPU of this machine and who holds it; bytes."""

    index: int
    name: str
    used: int
    total: int
    holders: tuple[GpuProcess, ...] = ()

    @property
    def free(self) -> bool:
        """Whether a run can have it: hardly any of its memory is in use."""
        return self.used <= max(_BUSY * self.total, 2 * _GIB)


@dataclass(frozen=True, kw_only=True)
class RayNode:
    address: str
    alive: bool
    gpus: int


@dataclass(frozen=True, kw_only=True)
class GpuInventory:
    """What is here; `ray` is None where no head answers, and `why_no_ray` says what it said."""

    gpus: tuple[GpuState, ...]
    visible: str | None = None
    ray: tuple[RayNode, ...] | None = None
    why_no_ray: str = ""

    def as_json(self) -> dict[str, Any]:
        gpus = [{**asdict(gpu), "free": gpu.free} for gpu in self.gpus]
        ray = None if self.ray is None else [asdict(node) for node in self.ray]
        return {"gpus": gpus, "visible_devices": self.visible, "ray": ray, "why_no_ray": self.why_no_ray}


@dataclass(frozen=True, kw_only=True)
class SplitRequest:
    """How many GPUs each role gets, and how many there are to be, over all nodes; 0: not said."""

    actor: int = 0
    rollout: int = 0
    total: int = 0
    nodes: int = 1
    colocated: bool = False

    @property
    def roles(self) -> tuple[tuple[str, int], ...]:
        """The roles with GPUs of their own."""
        if self.colocated:
            return (("actor and rollout", max(self.actor, self.rollout)),)
        return (("actor", self.actor), ("rollout", self.rollout))

    @property
    def needed(self) -> int:
        return sum(count for __, count in self.roles)


@dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """Where each role is (role, node, GPUs), and what is wrong or worth knowing."""

    placed: tuple[tuple[str, int, int], ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def plan_split(facts: GpuInventory, request: SplitRequest) -> SplitPlan:
    rooms = _rooms(facts, request)
    placed, problems = _place(request, rooms)
    problems = [*_here(facts, request), *_by_ray(facts, request), *problems]
    notes = []
    if request.needed and not problems and (idle := sum(rooms) - request.needed) > 0:
        notes.append(f"{idle} of {sum(rooms)} GPUs stay idle")
    if request.needed and facts.ray is None:
        notes.append(f"Ray is not up, so its view is not known: {facts.why_no_ray}")
    return SplitPlan(placed=tuple(placed), problems=tuple(problems), notes=tuple(notes))


def _rooms(facts: GpuInventory, wish: SplitRequest) -> list[int]:
    """Return the GPUs of each node: as asked, as Ray counts them, or those of this machine."""
    if wish.total:
        return [wish.total // wish.nodes] * wish.nodes
    if facts.ray:
        return [node.gpus for node in facts.ray if node.alive and node.gpus]
    return [len(facts.gpus)] * wish.nodes


def _place(wish: SplitRequest, rooms: Sequence[int]) -> tuple[list[tuple[str, int, int]], list[str]]:
    """Place each role, the larger first, on as few nodes as have room for equal parts of it."""
    left = dict(enumerate(rooms))
    placed: list[tuple[str, int, int]] = []
    problems = []
    if wish.total % wish.nodes:
        problems.append(f"{wish.total} GPUs are no equal number on each of {wish.nodes} nodes")
    for role, count in sorted(wish.roles, key=lambda row: -row[1]):
        if not count:
            continue
        nodes = _nodes_for(count, left)
        if not nodes:
            room = ", ".join(f"node {node}: {free}" for node, free in left.items()) or "none"
            problems.append(f"{role} wants {count} GPUs, an equal number a node; left are {room}")
        for node in nodes:
            left[node] -= count // len(nodes)
            placed.append((role, node, count // len(nodes)))
    return placed, problems


def _nodes_for(count: int, left: Mapping[int, int]) -> list[int]:
    for number in range(1, len(left) + 1):
        able = [node for node, free in left.items() if count % number == 0 and free >= count // number]
        if len(able) >= number:
            return able[:number]
    return []


def _here(facts: GpuInventory, wish: SplitRequest) -> Iterator[str]:
    """Yield what this machine lacks of its share; where nothing is asked for, every GPU is to be free."""
    if not facts.gpus:
        yield "no GPU here: there is no driver, or it does not answer"
    share = (wish.total or wish.needed) // wish.nodes
    if len(facts.gpus) < share:
        hidden = f", and CUDA_VISIBLE_DEVICES={facts.visible} hides others" if facts.visible is not None else ""
        yield f"{share} GPUs are to be on this machine, {len(facts.gpus)} are visible{hidden}"
    if facts.visible is not None and (shown := _shown(facts.visible)) < share <= len(facts.gpus):
        yield f"CUDA_VISIBLE_DEVICES={facts.visible} shows {shown} GPUs to programs, {share} are to be used: unset it"
    needed = -(-wish.needed // wish.nodes)
    free = [gpu for gpu in facts.gpus if gpu.free]
    held = "; ".join(f"GPU {gpu.index}: {_holders(gpu)}" for gpu in facts.gpus if not gpu.free)
    if len(facts.gpus) >= needed > len(free):
        yield f"{needed} GPUs are needed here, {len(free)} are free: {held}"
    elif held and not (wish.needed or wish.total):
        yield f"{len(free)} of {len(facts.gpus)} GPUs are free: {held}"


def _by_ray(facts: GpuInventory, wish: SplitRequest) -> Iterator[str]:
    if facts.ray is None:
        return
    alive = [node for node in facts.ray if node.alive]
    for node in facts.ray:
        if not node.alive:
            yield f"Ray has lost node {node.address}"
    count = sum(node.gpus for node in alive)
    if count < (wish.total or wish.needed):
        each = ", ".join(f"{node.address}: {node.gpus}" for node in alive)
        yield f"Ray counts {count} GPUs ({each}), {wish.total or wish.needed} are to be there: start it with --num-gpus"


def _shown(visible: str) -> int:
    names = [name for name in visible.split(",") if name.strip()]
    return len(names[: names.index("-1")] if "-1" in names else names)


def _holders(gpu: GpuState) -> str:
    return ", ".join(f"pid {row.pid} {row.who}" for row in gpu.holders) or "someone outside this container"


CUDA_VISIBLE = "CUDA_VISIBLE_DEVICES"
_SPLITS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
MAX_SERVERS = 64
"""Engines, at most."""


def assign_gpus(
    wanted: int, gpus: Sequence[GpuState], visible: str | None, settings: Mapping[str, Any]
) -> list[dict[str, str]]:
    """Return the environment of each engine, which chooses its GPUs.

    Parameters
    ----------
    wanted
        How many engines; 0: as many as free GPUs allow, and one at least.
    gpus
        Those of this machine; without any, engines compute on the processor.
    visible
        `CUDA_VISIBLE_DEVICES`, where it is set: no other is used.
    settings
        Of the engine: over how many GPUs one is spread.

    Raises
    ------
    ValueError
        Too few are free.
    """
    if not gpus or wanted == 1:
        return [{} for __ in range(max(1, wanted))]
    given = {name.replace("-", "_"): value for name, value in settings.items()}
    each = math.prod(int(given.get(name, 1)) for name in _SPLITS)
    free = _free(gpus, visible)
    count = wanted or min(MAX_SERVERS, len(free) // each)
    if not count:  # it says itself what it lacks
        return [{}]
    if count * each > len(free):
        held = ", ".join(str(gpu.index) for gpu in gpus if not gpu.free) or _("none")
        raise ValueError(
            _("{count} servers need {count2} free GPUs, there are {free_count} (held: {held})").format(
                count=count, count2=count * each, free_count=len(free), held=held
            )
        )
    shares = [free[at * each : (at + 1) * each] for at in range(count)]
    return [{CUDA_VISIBLE: ",".join(names), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} for names in shares]


def _free(gpus: Sequence[GpuState], visible: str | None) -> list[str]:
    """Return those that may be used and that nobody holds, as programs name them; a UUID counts as free."""
    free = {str(gpu.index): gpu.free for gpu in gpus}
    if visible is None:
        return [name for name, unused in free.items() if unused]
    return [name for name in (word.strip() for word in visible.split(",")) if name and free.get(name, "-" in name)]


_WORDS = 60
_DRIVER_S = 10.0  # a driver without persistence mode sets eight cards up first
VISIBLE = "CUDA_VISIBLE_DEVICES"


def probe_gpu_inventory(environ: Mapping[str, str], dashboard: str) -> GpuInventory:
    """Return the facts; `dashboard` is the URL of a Ray head's dashboard."""
    gpus = probe_gpu_states()
    visible = environ.get(VISIBLE)
    try:
        nodes = fetch_ray_nodes(dashboard)
    except NodeError as error:
        return GpuInventory(gpus=gpus, visible=visible, why_no_ray=error.what)
    return GpuInventory(gpus=gpus, visible=visible, ray=tuple(map(_node, nodes)))


def probe_gpu_states() -> tuple[GpuState, ...]:
    return tuple(
        GpuState(
            index=gpu.index,
            name=gpu.name,
            used=gpu.memory_bytes,
            total=gpu.total_bytes,
            holders=tuple(GpuProcess(pid=pid, who=_who(pid)) for pid in gpu.processes),
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


def format_inventory(facts: GpuInventory, split: SplitPlan) -> str:
    return "\n".join(_gpu_lines(facts, split))


def _gpu_lines(facts: GpuInventory, split: SplitPlan) -> Iterator[str]:
    for gpu in facts.gpus:
        state = "free" if gpu.free else "held"
        yield f"GPU {gpu.index}  {state}  {gpu.name}  {card_text(gpu.used)} of {card_text(gpu.total)}"
        yield from (f"       pid {holder.pid}  {holder.who}" for holder in gpu.holders)
    for node in facts.ray or ():
        yield f"Ray    {'alive' if node.alive else 'lost'}  {node.address}  {node.gpus} GPUs"
    yield from (f"node {node}  {role}: {count} GPUs" for role, node, count in split.placed)
    yield from (f"note: {text}" for text in split.notes)
    yield from (f"wrong: {text}" for text in split.problems)
