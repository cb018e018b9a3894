"""What Ray says of its nodes, and what a cluster lacks of its plan."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlbox.cluster.connection import Node
from rlbox.cluster.plan import ClusterPlan
from rlbox.cluster.runtime import create_runtime, run_inside
from rlbox.errors import RlboxError
from rlbox.foreign import parse_json

_SCRIPT = "ray_state.py"


@dataclass(frozen=True, kw_only=True)
class RayNode:
    """A node as Ray knows it, a new one with each start; `free` and `total` are resources, `why` is why it ended."""

    name: str
    address: str
    alive: bool
    total: Mapping[str, float] = field(default_factory=dict)
    free: Mapping[str, float] = field(default_factory=dict)
    why: str = ""
    id: str = ""


@dataclass(frozen=True, kw_only=True)
class RayState:
    """The nodes that Ray knows; `said` is why it could not be asked.

    `leaving` names nodes of which Ray still calls alive what was ended there: it may give that work.
    """

    nodes: tuple[RayNode, ...] = ()
    said: str = ""
    leaving: tuple[str, ...] = ()

    def ids(self, names: Iterable[str]) -> frozenset[str]:
        """Return the ids of nodes by their names."""
        wanted = {*names}
        return frozenset(node.id for node in self.nodes if node.name in wanted)

    def find_alive(self, name: str) -> RayNode | None:
        return next((node for node in self.nodes if node.name == name and node.alive), None)


def read_state(line: str) -> RayState:
    """Return the state that a line of the script in the head's container reports; one that is none says so."""
    try:
        row = parse_json(line)
        nodes, leaving = (tuple(row.get(key, ())) for key in ("nodes", "leaving"))
        return RayState(
            nodes=tuple(_read_node(one) for one in nodes),
            said=str(row.get("said", "")),
            leaving=tuple(str(name) for name in leaving),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return RayState(said=f"Ray's state cannot be read: {line[:80]!r}")


def _read_node(row: Mapping[str, Any]) -> RayNode:
    return RayNode(
        name=str(row["name"]),
        address=str(row["address"]),
        alive=bool(row["alive"]),
        total={str(key): float(value) for key, value in row.get("total", {}).items()},
        free={str(key): float(value) for key, value in row.get("free", {}).items()},
        why=str(row.get("why", "")),
        id=str(row.get("id", "")),
    )


def find_missing(plan: ClusterPlan, state: RayState) -> dict[str, str]:
    """Return the nodes of a plan that are not as they should be, each with what is missing."""
    missing = {}
    for member in plan.members:
        node = state.find_alive(member.name)
        if node is None:
            dead = [one for one in state.nodes if one.name == member.name]
            missing[member.name] = f"Ray lost it: {dead[-1].why or 'it ended'}" if dead else "it has not joined"
        elif node.total.get("GPU", 0) < member.gpus:
            missing[member.name] = f"{node.total.get('GPU', 0):g} of {member.gpus} GPUs"
        elif member.name in state.leaving:
            missing[member.name] = "Ray has not given up yet what was ended there"
    return missing


def _gcs_address(plan: ClusterPlan) -> str:
    return f"{plan.head.address}:{plan.ports.of('gcs')}"


def ask_state(head: Node, plan: ClusterPlan) -> RayState:
    """Return what Ray says now, or why it cannot be asked."""
    try:
        lines = list(run_inside(create_runtime(head, plan, plan.head), _SCRIPT, _gcs_address(plan), "0"))
    except RlboxError as error:
        return RayState(said=error.what)
    return read_state(lines[-1]) if lines else RayState(said="Ray's head does not run, or does not answer")


class RayStateWatcher:
    """What Ray says of its nodes, from a script beside the head that reports until Ray has all of them.

    `ended` are the ids of nodes that were ended before: it is waited for until Ray has given them up, too.
    """

    def __init__(self, head: Node, plan: ClusterPlan, limit_s: float, ended: frozenset[str]) -> None:
        self._states: queue.Queue[RayState] = queue.Queue()
        self.state = RayState(said="Ray was not asked yet")
        wanted = (f"{member.name}={member.gpus}" for member in plan.members)
        arguments = (_gcs_address(plan), f"{limit_s:g}", *wanted, *(f"-{one}" for one in sorted(ended)))
        threading.Thread(target=self._read, args=(head, plan, arguments), name="state of Ray", daemon=True).start()

    def _read(self, head: Node, plan: ClusterPlan, arguments: tuple[str, ...]) -> None:
        try:
            for line in run_inside(create_runtime(head, plan, plan.head), _SCRIPT, *arguments):
                self._states.put(read_state(line))
        except RlboxError as error:
            self._states.put(RayState(said=error.what))

    def wait(self, timeout_s: float) -> RayState:
        """Return the newest state, after waiting for news for a while."""
        try:
            self.state = self._states.get(timeout=timeout_s)
        except queue.Empty:
            return self.state
        return self.state
