"""A cluster as one value: what it is made of, where its parts are; the same in labels, in a record and in JSON."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from rlbox.cluster.labels import NODE_LABEL, PLAN_LABEL
from rlbox.cluster.ports import PortPlan
from rlbox.foreign import parse_json

RECORDS = "clusters"
"""Folder of a data disk that holds a folder for each user, with one for each cluster."""


@dataclass(frozen=True, kw_only=True)
class ClusterMember:
    """One node of a cluster: `data` its data disk, `gpus` how many it gives, `uid` whose it is there.

    `identity` is that of the machine since its last start, as it was when the cluster was made. `place` is where rlbox
    has the target on a node whose Ray is processes (`/opt/rlbox`, or that below a prefix); empty: its engine has Ray.
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
    def here(self) -> bool:
        """Whether its Ray is processes of its user's, and no container."""
        return bool(self.place)


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """A cluster: the head is the first of `members`.

    `id` is made anew with each cluster. `image` is the digest of its configuration, which is the same in every engine,
    or the checksum of its lock where no node has an engine; `ray` its version. `closed` says what keeps strangers out:
    token, tls (with rules for the ports), nothing. `maker` typed `up` at `made` (UTC).
    """

    id: str
    name: str
    target: str
    image: str
    ray: str
    members: tuple[ClusterMember, ...]
    ports: PortPlan
    closed: str
    maker: str
    made: str
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

    def folder(self, node: str) -> str:
        """Return the folder of a node below its data disk."""
        uid = next(member.uid for member in self.members if member.name == node)
        return folder_of(uid, self.name, node)

    def renewed(self, identities: Mapping[str, str]) -> ClusterPlan:
        """Return it with the machines as they are now of nodes whose Ray is started anew: that is in its new labels."""
        members = (dataclasses.replace(one, identity=identities.get(one.name, one.identity)) for one in self.members)
        return dataclasses.replace(self, members=tuple(members))

    def text(self) -> str:
        """Return it as JSON on one line; `load_plan` is the way back."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))


def folder_of(uid: int, name: str, node: str) -> str:
    """Return the folder of a user's cluster below the data disk of a node; disks that nodes share have one for each."""
    return f"{RECORDS}/{uid}/{name}/{node}"


def load_cluster(text: str) -> ClusterPlan | None:
    """Return the cluster of a text; None where it is none that this rlbox knows."""
    try:
        row = parse_json(text)
        return _adapter().validate_python(row) if row.get("schema") == 1 else None
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
