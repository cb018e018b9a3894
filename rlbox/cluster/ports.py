"""The ports of a cluster: 20 in a row for its parts and a range for its workers, none of which another cluster has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rlbox.errors import NodeError
from rlbox.i18n import _

STRIDE = 20
BASE = 8100
"""Of the first cluster on a node; outside Ray's own defaults and its workers' (fix `ray-port-conflict`)."""

_FIRST_WORKER, _WORKERS = 10002, 1000
_MOST = 20

HEAD_PARTS = {
    "gcs": 0,
    "dashboard": 1,
    "client": 2,
    "dashboard-grpc": 3,
    "autoscaler-metrics": 16,
    "dashboard-metrics": 17,
}
"""Parts of the head alone; the dashboard is on loopback."""

NODE_PARTS = {
    "node-manager": 10,
    "object-manager": 11,
    "agent-grpc": 12,
    "runtime-env": 13,
    "metrics": 14,
    "agent": 15,
}
PARTS = 18
"""Where the first node that has no image gives its parts to the others, before anything else is there."""


@dataclass(frozen=True, kw_only=True)
class PortPlan:
    """The first port of the 20, and the first of the workers' thousand."""

    base: int
    workers: int

    @property
    def worker_range(self) -> tuple[int, int]:
        """First and last port of the workers."""
        return self.workers, self.workers + _WORKERS - 1

    def of(self, part: str) -> int:
        """Return the port of a part."""
        return self.base + {**HEAD_PARTS, **NODE_PARTS, "parts": PARTS}[part]

    def listened(self, *, head: bool) -> dict[str, int]:
        """Return the ports that parts of a node listen on, by part."""
        parts = {**HEAD_PARTS, **NODE_PARTS} if head else NODE_PARTS
        return {part: self.base + number for part, number in parts.items()}

    def reached(self, *, head: bool) -> tuple[int, ...]:
        """Return the ports that the other nodes connect to: not those on loopback, and of the workers the two ends."""
        inner = ("dashboard", "dashboard-grpc", "autoscaler-metrics", "dashboard-metrics")
        parts = [port for part, port in self.listened(head=head).items() if part not in inner]
        return (*parts, self.base + PARTS, *self.worker_range)

    def all(self) -> frozenset[int]:
        """Return every port that is its own."""
        first, last = self.worker_range
        return frozenset((*range(self.base, self.base + STRIDE), *range(first, last + 1)))


def choose_ports(taken: Iterable[int], others: Iterable[PortPlan], base: int = 0, first: int = BASE) -> PortPlan:
    """Return the ports of a new cluster.

    Parameters
    ----------
    taken
        Ports that somebody listens on, on any of the nodes.
    others
        Plans of the other clusters there, whether they listen at the moment or not.
    base
        What the user wants; 0: the first that fit, from `first` on.

    Raises
    ------
    NodeError
        No place is left: twenty clusters have them, or others listen everywhere.
    """
    used = set(taken)
    known = list(others)
    for plan in known:
        used |= plan.all()
    workers = next((at for at in _ranges() if used.isdisjoint(range(at, at + _WORKERS))), 0) or _least(used)
    bases = (base,) if base else (first + number * STRIDE for number in range(_MOST))
    for at in bases:
        if base or used.isdisjoint(range(at, at + STRIDE)):
            return PortPlan(base=at, workers=workers)
    raise NodeError(
        _("no {stride} ports in a row are free on all nodes, from {first} on").format(stride=STRIDE, first=first),
        next_step=_("cluster.port of the target, or --port: the first of 20 that are free"),
    )


def _ranges() -> Iterable[int]:
    return (_FIRST_WORKER + number * _WORKERS for number in range(_MOST))


def _least(used: set[int]) -> int:
    """Return the range in which the fewest ports are taken: a worker that meets one takes another."""
    return min(_ranges(), key=lambda at: len(used.intersection(range(at, at + _WORKERS))))
