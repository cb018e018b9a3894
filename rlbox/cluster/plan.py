"""A cluster as it is asked for, and as one value: labels, ports, members; the same in labels and in JSON."""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from rlbox.config.schema import NAME_PATTERN
from rlbox.errors import MachineError, SpecError
from rlbox.i18n import _
from rlbox.target.target import NODE, ClusterNode

if TYPE_CHECKING:
    from rlbox.target.target import Target

CLUSTER_LABEL = "rlbox.cluster"
"""The cluster's name. Beside it: its id, the node's name, its role (head, worker), the plan as JSON, the machine
since its last start."""

ID_LABEL, NODE_LABEL, ROLE_LABEL = "rlbox.cluster.id", "rlbox.cluster.node", "rlbox.cluster.role"
PLAN_LABEL, MACHINE_LABEL = "rlbox.cluster.plan", "rlbox.cluster.machine"

LOCAL = "local"
"""The node that is this machine."""

STRIDE = 20
BASE = 8100
"""Of the first cluster on a node; outside Ray's own defaults and its workers' (fix `ray-port-conflict`)."""

_FIRST_WORKER, _WORKERS = 10002, 1000
_MOST = 20

_PARTS = {
    "gcs": 0,
    "dashboard": 1,
    "client": 2,
    "autoscaler-metrics": 16,
    "dashboard-metrics": 17,
    "node-manager": 10,
    "object-manager": 11,
    "agent-grpc": 12,
    "runtime-env": 13,
    "metrics": 14,
    "agent": 15,
    "burn-in": 18,
}
adapter = functools.cache(TypeAdapter)
_NAME_NODES = _("pass --nodes HEAD,WORKER, or set cluster.nodes in the target")
_HEAD_PARTS = ("gcs", "dashboard", "client", "autoscaler-metrics", "dashboard-metrics")
_LOOPBACK_PARTS = ("dashboard", "autoscaler-metrics", "dashboard-metrics")


@dataclass(frozen=True, kw_only=True)
class PortPlan:
    base: int
    workers: int

    @property
    def worker_range(self) -> tuple[int, int]:
        return self.workers, self.workers + _WORKERS - 1

    def of(self, part: str) -> int:
        return self.base + _PARTS[part]

    def listened(self, *, head: bool) -> tuple[int, ...]:
        return tuple(self.of(part) for part in _PARTS if head or part not in _HEAD_PARTS)

    def ports_to_try_from_others(self, *, head: bool) -> tuple[int, ...]:
        """Return the ports that the other nodes connect to: not those on loopback, and of the workers the two ends."""
        inner = [self.of(part) for part in _LOOPBACK_PARTS]
        return (*(port for port in self.listened(head=head) if port not in inner), *self.worker_range)

    def all(self) -> frozenset[int]:
        first, last = self.worker_range
        return frozenset((*range(self.base, self.base + STRIDE), *range(first, last + 1)))


def choose_ports(listening_ports: Iterable[int], other_plans: Iterable[PortPlan], unchecked_base: int = 0) -> PortPlan:
    """Return `unchecked_base`, or 20 ports that are free on all nodes, and 1,000 for workers."""
    used = set(listening_ports).union(*(plan.all() for plan in other_plans))
    ranges = (_FIRST_WORKER + number * _WORKERS for number in range(_MOST))
    # the first that is free, else that with the fewest listeners: a worker that meets one takes another
    workers = min(ranges, key=lambda at: len(used.intersection(range(at, at + _WORKERS))))
    bases = range(BASE, BASE + _MOST * STRIDE, STRIDE)
    base = unchecked_base or next((at for at in bases if used.isdisjoint(range(at, at + STRIDE))), None)
    if base is None:
        raise MachineError(
            _("no {stride} ports in a row are free on all nodes, from {first} on").format(stride=STRIDE, first=BASE),
            next_step=_("cluster.port of the target, or --port: the first of 20 that are free"),
        )
    return PortPlan(base=base, workers=workers)


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
    identity: str = ""
    place: str = ""

    @property
    def is_inplace(self) -> bool:
        return bool(self.place)


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """A cluster: the head is the first of `members`.

    `id` is created again with each cluster. `image_digest` is the checksum of the image's layers and configuration, the
    same in every engine, or that of its lock where no node has an engine; `ray` its version. `maker` typed `up` at
    `made` (UTC).
    """

    id: str
    name: str
    target: str
    image_digest: Annotated[str, Field(alias="image")]
    ray: str
    members: tuple[ClusterMember, ...]
    ports: PortPlan
    maker: str
    made: str
    authentication: Annotated[str, Field(alias="closed")] = "token"
    schema: Literal[1] = 1

    @property
    def head(self) -> ClusterMember:
        return self.members[0]

    @property
    def gpus(self) -> int:
        return sum(member.gpus for member in self.members)

    @functools.cached_property
    def members_by_name(self) -> Mapping[str, ClusterMember]:
        return {member.name: member for member in self.members}

    def directory_relative_to_disk(self, node: str) -> str:
        return cluster_directory_relative_to_disk(self.members_by_name[node].uid, self.name, node)

    def as_json(self) -> dict[str, Any]:
        return dict(adapter(ClusterPlan).dump_python(self, mode="json", by_alias=True))

    def to_json_line(self) -> str:
        return json.dumps(self.as_json())


def cluster_directory_relative_to_disk(uid: int, name: str, node: str) -> str:
    """Return the directory of a user's cluster below a data disk; on a disk that nodes share there is one for each."""
    return f"clusters/{uid}/{name}/{node}"


def plan_of_labels(labels: Mapping[str, str]) -> ClusterPlan | None:
    try:
        plan: ClusterPlan = adapter(ClusterPlan).validate_json(labels.get(PLAN_LABEL, ""))
        return plan
    except ValidationError:
        return None


def own_plan(labels: Mapping[str, str], name: str, uid: int) -> ClusterPlan | None:
    """Return the cluster that a container is of, if it has that name and is that user's on the container's node."""
    plan = plan_of_labels(labels)
    member = plan.members_by_name.get(labels.get(NODE_LABEL, "")) if plan else None
    return plan if plan and member and (plan.name, member.uid) == (name, uid) else None


# ---- which cluster is meant, and which nodes: as the command line says, else as the target does


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """The target, and nodes, the cluster's name and the data disk in place of what it says; empty: as it says."""

    target: str
    nodes: str = ""
    name: str = ""
    data: str = ""

    @property
    def target_and_options_text(self) -> str:
        options = (("--nodes", self.nodes), ("--name", self.name), ("--data", self.data))
        return " ".join([self.target, *(f"{option} {shlex.quote(text)}" for option, text in options if text)])

    @property
    def repair_hint_text(self) -> str:
        return _("rlbox cluster up {words} brings back what died").format(words=self.target_and_options_text)


def resolve_node_specs(target: Target, names_csv: str = "", default_data_disk: str = "") -> tuple[ClusterNode, ...]:
    """Return the nodes, the head first, each with a data disk: those of `names_csv`, else all of the target.

    `default_data_disk` is that of every node that names none itself, else that of the target.
    """
    rows = [ClusterNode(name=row) if isinstance(row, str) else row for row in target.cluster.nodes]
    if names := [name for name in (word.strip() for word in names_csv.split(",")) if name]:
        by_name = {row.name: row for row in rows}
        if wrong := next((name for name in names if not re.match(NODE, name)), ""):
            raise SpecError(_("{name!r} is not a valid node name").format(name=wrong), next_step=_NAME_NODES)
        rows = [by_name.get(name) or ClusterNode(name=name) for name in names]
    where = f"images/{target.name}/target.toml"
    if not rows:
        what = _("target {target} names no nodes").format(target=target.name)
        raise SpecError(what, where=f"{where}: cluster.nodes", next_step=_NAME_NODES)
    name, count = Counter(row.name for row in rows).most_common(1)[0]
    if count > 1:
        raise SpecError(_("node {twice} is named twice").format(twice=name), next_step=_NAME_NODES)
    disk = default_data_disk or target.disk.host
    specs = tuple(row.model_copy(update={"data": row.data or disk}) for row in rows)
    for spec in specs:
        if not spec.data.startswith("/"):
            raise SpecError(
                _("the data disk of node {wrong} is {data!r}, which is not an absolute path").format(
                    wrong=spec.name, data=spec.data
                ),
                where=f"{where}: disk.host",
                next_step=_("--data /PATH/ON/THE/NODES, or disk.host of the target"),
            )
    return specs


def resolve_cluster_name(target: Target, option: str = "") -> str:
    name = option or target.cluster.name or target.name
    if not re.fullmatch(NAME_PATTERN, name):
        raise SpecError(
            _("{name!r} is not a valid cluster name").format(name=name),
            where="--name",
            next_step=_("small letters, digits and dashes, 63 of them at most: --name pair"),
        )
    return name
