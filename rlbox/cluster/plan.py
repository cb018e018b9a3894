"""A cluster as one value: its labels, its ports, what it is made of; the same in labels, in a record and in JSON."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rlbox.errors import NodeError
from rlbox.foreign import parse_json
from rlbox.i18n import _

CLUSTER_LABEL = "rlbox.cluster"
"""The cluster's name. Beside it: its id, the node's name, its role (head, worker), the plan as JSON, who made it."""

ID_LABEL, NODE_LABEL, ROLE_LABEL = "rlbox.cluster.id", "rlbox.cluster.node", "rlbox.cluster.role"
PLAN_LABEL, MAKER_LABEL = "rlbox.cluster.plan", "rlbox.cluster.maker"

STRIDE = 20
BASE = 8100
"""Of the first cluster on a node; outside Ray's own defaults and its workers' (fix `ray-port-conflict`)."""

_FIRST_WORKER, _WORKERS = 10002, 1000
_MOST = 20

HEAD_PARTS = {
    "gcs": 0,
    "dashboard": 1,
    "client": 2,
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
    "burn-in": 18,
}


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
        return self.base + {**HEAD_PARTS, **NODE_PARTS}[part]

    def listened(self, *, head: bool) -> dict[str, int]:
        """Return the ports that parts of a node listen on, by part."""
        parts = {**HEAD_PARTS, **NODE_PARTS} if head else NODE_PARTS
        return {part: self.base + number for part, number in parts.items()}

    def reached(self, *, head: bool) -> tuple[int, ...]:
        """Return the ports that the other nodes connect to: not those on loopback, and of the workers the two ends."""
        inner = ("dashboard", "autoscaler-metrics", "dashboard-metrics")
        parts = [port for part, port in self.listened(head=head).items() if part not in inner]
        return (*parts, *self.worker_range)

    def all(self) -> frozenset[int]:
        """Return every port that is its own."""
        first, last = self.worker_range
        return frozenset((*range(self.base, self.base + STRIDE), *range(first, last + 1)))


def choose_ports(
    listening_ports: Iterable[int], other_plans: Iterable[PortPlan], forced_base: int = 0, lowest_base: int = BASE
) -> PortPlan:
    """Return the ports of a new cluster; those of the workers may be in use where none of twenty ranges is free.

    Parameters
    ----------
    listening_ports
        Ports that somebody listens on, on any of the nodes.
    other_plans
        Plans of the other clusters there, whether they listen at the moment or not.
    forced_base
        Taken as it is, whoever listens there; 0: the first that is free, from `lowest_base` on.

    Raises
    ------
    NodeError
        None is forced, and none of twenty is free.
    """
    used = set(listening_ports).union(*(plan.all() for plan in other_plans))
    ranges = (_FIRST_WORKER + number * _WORKERS for number in range(_MOST))
    # the first that is free, else that with the fewest listeners: a worker that meets one takes another
    workers = min(ranges, key=lambda at: len(used.intersection(range(at, at + _WORKERS))))
    bases = (forced_base,) if forced_base else (lowest_base + number * STRIDE for number in range(_MOST))
    for at in bases:
        if forced_base or used.isdisjoint(range(at, at + STRIDE)):
            return PortPlan(base=at, workers=workers)
    raise NodeError(
        _("no {stride} ports in a row are free on all nodes, from {first} on").format(stride=STRIDE, first=lowest_base),
        next_step=_("cluster.port of the target, or --port: the first of 20 that are free"),
    )


RECORDS = "clusters"
"""Folder of a data disk that holds a folder for each user, with one for each cluster."""

MachineBootIdentity = str


@dataclass(frozen=True, kw_only=True)
class ClusterMember:
    """One node of a cluster: `data` its data disk, `gpus` how many it gives, `uid` whose it is there.

    `identity` is that of the machine since its last start, as it was when the cluster was made. `place` is where
    `apply` installed the target on a node whose Ray is processes (`/opt/rlbox`, or that below a prefix), else empty.
    """

    name: str
    data: str
    address: str
    interface: str
    gpus: int
    uid: int
    identity: MachineBootIdentity = ""
    place: str = ""

    @property
    def is_inplace(self) -> bool:
        """Whether its Ray is processes of its user's, and no container."""
        return bool(self.place)


_JSON_KEYS = {"image_digest": "image", "authentication": "closed"}
"""Fields of `ClusterPlan` that have another key in JSON."""


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """A cluster: the head is the first of `members`.

    `id` is made anew with each cluster. `image_digest` is the checksum of the image's layers and configuration, the
    same in every engine, or that of its lock where no node has an engine; `ray` its version. `maker`
    typed `up` at `made` (UTC).
    """

    id: str
    name: str
    target: str
    image_digest: str
    ray: str
    members: tuple[ClusterMember, ...]
    ports: PortPlan
    maker: str
    made: str
    authentication: str = "token"
    schema: int = 1

    @property
    def head(self) -> ClusterMember:
        """The first node."""
        return self.members[0]

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(member.gpus for member in self.members)

    def member(self, name: str) -> ClusterMember | None:
        """Return the node of a name."""
        return next((member for member in self.members if member.name == name), None)

    def directory_relative_to_disk(self, node: str) -> str:
        """Return the cluster's directory below the data disk of a node."""
        uid = next(member.uid for member in self.members if member.name == node)
        return cluster_directory_relative_to_disk(uid, self.name, node)

    def with_identities(self, identities: Mapping[str, MachineBootIdentity]) -> ClusterPlan:
        """Return it with the machines as they are now of nodes whose Ray is started anew: that is in its new labels."""
        members = (dataclasses.replace(one, identity=identities.get(one.name, one.identity)) for one in self.members)
        return dataclasses.replace(self, members=tuple(members))

    def as_json(self) -> dict[str, Any]:
        return {_JSON_KEYS.get(field, field): value for field, value in dataclasses.asdict(self).items()}

    def to_json_line(self) -> str:
        """Return it as JSON on one line; `load_cluster` is the way back."""
        return json.dumps(self.as_json(), sort_keys=True, separators=(",", ":"))


def cluster_directory_relative_to_disk(uid: int, name: str, node: str) -> str:
    """Return the directory of a user's cluster below a data disk; on a disk that nodes share there is one for each."""
    return f"{RECORDS}/{uid}/{name}/{node}"


def load_cluster(text: str) -> ClusterPlan | None:
    """Return the cluster of a text; None where it is none that this rlbox knows."""
    try:
        row = parse_json(text)
        fields = {key: field for field, key in _JSON_KEYS.items()}
        named = {fields.get(key, key): value for key, value in row.items()}
        return _adapter().validate_python(named) if row.get("schema") == 1 else None
    except (ValueError, ValidationError, AttributeError):
        return None


def plan_of_labels(labels: Mapping[str, str]) -> ClusterPlan | None:
    """Return the cluster that a container is of, None where it says none."""
    return load_cluster(labels.get(PLAN_LABEL, ""))


def own_plan(labels: Mapping[str, str], name: str, uid: int) -> ClusterPlan | None:
    """Return the cluster that a container is of, if it has that name and is that user's on the container's node."""
    plan = plan_of_labels(labels)
    member = plan.member(labels.get(NODE_LABEL, "")) if plan else None
    return plan if plan and member and (plan.name, member.uid) == (name, uid) else None


@functools.lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[ClusterPlan]:
    return TypeAdapter(ClusterPlan)
