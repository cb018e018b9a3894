"""Does a split of GPUs between training and generation fit what is there, node by node; who holds what.

Source: notes 003, `diagnose_gpu_allocation.py --actor-gpus 2 --rollout-gpus 2 --total-gpus 8`; verl's GKD recipe gives
the two roles GPUs of their own, an equal number on each node (`trainer.n_gpus_per_node`, `rollout.n_gpus_per_node`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_BUSY = 0.1  # of its memory; engines claim 90 %
_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class GpuUser:
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
    holders: tuple[GpuUser, ...] = ()

    @property
    def free(self) -> bool:
        """Whether a run can have it: hardly any of its memory is in use."""
        return self.used <= max(_BUSY * self.total, 2 * _GIB)


@dataclass(frozen=True, kw_only=True)
class RayNode:
    """A node as Ray sees it."""

    address: str
    alive: bool
    gpus: int


@dataclass(frozen=True, kw_only=True)
class GpusHere:
    """What is here; `ray` is None where no head answers, and `why_no_ray` says what it said."""

    gpus: tuple[GpuState, ...]
    visible: str | None = None
    ray: tuple[RayNode, ...] | None = None
    why_no_ray: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        gpus = [{**asdict(gpu), "free": gpu.free} for gpu in self.gpus]
        ray = None if self.ray is None else [asdict(node) for node in self.ray]
        return {"gpus": gpus, "visible_devices": self.visible, "ray": ray, "why_no_ray": self.why_no_ray}


@dataclass(frozen=True, kw_only=True)
class SplitWish:
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
        """GPUs that all roles take together."""
        return sum(count for _, count in self.roles)


@dataclass(frozen=True, kw_only=True)
class Split:
    """Where each role is (role, node, GPUs), and what is wrong or worth knowing."""

    placed: tuple[tuple[str, int, int], ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def plan_split(facts: GpusHere, wish: SplitWish) -> Split:
    """Return whether and how the roles fit."""
    rooms = _rooms(facts, wish)
    placed, problems = _place(wish, rooms)
    problems = [*_here(facts, wish), *_by_ray(facts, wish), *problems]
    notes = []
    if wish.needed and not problems and (idle := sum(rooms) - wish.needed) > 0:
        notes.append(f"{idle} of {sum(rooms)} GPUs stay idle")
    if wish.needed and facts.ray is None:
        notes.append(f"Ray is not up, so its view is not known: {facts.why_no_ray}")
    return Split(placed=tuple(placed), problems=tuple(problems), notes=tuple(notes))


def _rooms(facts: GpusHere, wish: SplitWish) -> list[int]:
    """Return the GPUs of each node: as asked, as Ray counts them, or those of this machine."""
    if wish.total:
        return [wish.total // wish.nodes] * wish.nodes
    if facts.ray:
        return [node.gpus for node in facts.ray if node.alive and node.gpus]
    return [len(facts.gpus)] * wish.nodes


def _place(wish: SplitWish, rooms: Sequence[int]) -> tuple[list[tuple[str, int, int]], list[str]]:
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


def _here(facts: GpusHere, wish: SplitWish) -> Iterator[str]:
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


def _by_ray(facts: GpusHere, wish: SplitWish) -> Iterator[str]:
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
