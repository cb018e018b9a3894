"""What a node reports of itself, as values."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rlbox.engine.container import ACTIVE_STATES
from rlbox.errors import NodeError
from rlbox.i18n import _


@dataclass(frozen=True, kw_only=True)
class InterfaceAddress:
    """An address of IPv4; `mtu` in bytes, `speed` in Mbit/s, 0 where the driver does not tell."""

    interface: str
    address: str
    mtu: int = 0
    speed: int = 0


@dataclass(frozen=True, kw_only=True)
class NodeGpu:
    """A GPU; memory in bytes, `errors` uncorrected ones of it, `users` processes on it with their owners."""

    index: int
    name: str
    memory: int
    used: int
    driver: str
    errors: int = 0
    users: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NodeGpus:
    """The GPUs of a node, and what its driver said where it failed."""

    gpus: tuple[NodeGpu, ...] = ()
    said: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeEngine:
    """The engine; `state` is ok, absent, denied or silent."""

    socket: str
    state: str
    said: str = ""
    version: str = ""
    security: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Installation:
    """A target that `apply` installed: `own` is where rlbox is, `lock` the lock's checksum, `data` the data disk.

    `image`: it is the image of the container that the node is. `whole`: the last `apply` came to its end.
    """

    own: str
    lock: str
    data: str = ""
    whole: bool = True
    image: bool = False


@dataclass(frozen=True, kw_only=True)
class NodeDisk:
    """A directory that is to be a data disk; sizes in bytes."""

    path: str
    there: bool
    said: str = ""
    free: int = 0
    size: int = 0
    mode: int = 0
    uid: int = 0
    writable: bool = False

    @property
    def is_full(self) -> bool:
        return self.there and self.free < 0.01 * self.size


@dataclass(frozen=True, kw_only=True)
class RayInstance:
    """Ray on a node: a container of its engine, or processes (`here-…`); `said` is which part ended first."""

    id: str
    name: str
    image: str
    labels: Mapping[str, str]
    status: str
    exit_code: int = 0
    oom: bool = False
    finished: str = ""
    said: str = ""

    @property
    def is_running(self) -> bool:
        return self.status in ACTIVE_STATES

    @property
    def is_inplace(self) -> bool:
        """Whether it is processes of a user, and no container."""
        return self.id.startswith("here-")


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """One node; memory in bytes, `listening` are ports, `identity` is the same for two names of one machine.

    `installation` is None where the target was not installed there; `paths` are those of a job's that it has; `clocks`
    are its time before and after it looked.
    """

    identity: str
    uid: int
    gid: int
    user: str
    cores: int
    memory: int
    addresses: tuple[InterfaceAddress, ...]
    gpu: NodeGpus
    engine: NodeEngine
    disk: NodeDisk
    listening: tuple[int, ...] = ()
    clusters: tuple[RayInstance, ...] = ()
    installation: Installation | None = None
    paths: tuple[str, ...] = ()
    clocks: tuple[float, float] = (0.0, 0.0)

    def find_address(self, address: str) -> InterfaceAddress | None:
        return next((one for one in self.addresses if one.address == address), None)


def read_facts(name: str, row: Mapping[str, Any]) -> NodeFacts:
    """Return the facts of a report; `NodeError` where they are none."""
    try:
        found: NodeFacts = _adapter(NodeFacts).validate_python(row)
        return found
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise NodeError(
            _("node {name} says what cannot be read: {key}: {msg}").format(name=name, key=key, msg=first["msg"])
        ) from error


def read_instances(rows: Any) -> tuple[RayInstance, ...]:
    return tuple(_adapter(RayInstance).validate_python(row) for row in rows)


def read_disk(row: Any) -> NodeDisk:
    found: NodeDisk = _adapter(NodeDisk).validate_python(row)
    return found


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
