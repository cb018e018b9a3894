"""What a node reports of itself, as values."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rlbox.engine.container import ACTIVE_STATES
from rlbox.errors import NodeError
from rlbox.i18n import _


@dataclass(frozen=True, kw_only=True)
class InterfaceAddress:
    """One address; `mtu` in bytes, `speed` in Mbit/s, 0 where the driver does not tell."""

    interface: str
    address: str
    mtu: int
    speed: int = 0
    virtual: bool = False

    @property
    def is_reachable(self) -> bool:
        """Whether another machine could reach it: not loopback, not of the link alone, not of a bridge of engines."""
        ip = ipaddress.ip_address(self.address)
        inner = self.interface.startswith(("docker", "br-", "veth", "virbr", "cni", "flannel"))
        return not (ip.is_loopback or ip.is_link_local or ip.is_unspecified or inner or self.virtual)


@dataclass(frozen=True, kw_only=True)
class Listener:
    """A TCP port that somebody listens on; `uid` owns the socket."""

    port: int
    address: str
    uid: int = 0


@dataclass(frozen=True, kw_only=True)
class NodeGpu:
    """A GPU; memory in bytes, `busy` in per cent, `errors` uncorrected ones of its memory."""

    index: int
    uuid: str
    name: str
    memory: int
    used: int
    busy: int
    driver: str
    errors: int = 0


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process on a GPU; `user` is empty where the node cannot see it."""

    uuid: str
    pid: int
    used: int
    command: str
    user: str


@dataclass(frozen=True, kw_only=True)
class NodeGpus:
    """The GPUs of a node, and what its driver said where it failed."""

    gpus: tuple[NodeGpu, ...] = ()
    holders: tuple[GpuProcess, ...] = ()
    said: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeEngine:
    """The engine; `state` is ok, absent, denied, silent or broken."""

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
    """A directory that is to be a data disk; sizes in bytes, `root`: it lies on the system's own disk."""

    path: str
    there: bool
    said: str = ""
    root: bool = False
    free: int = 0
    size: int = 0
    inodes: int = 0
    mode: int = 0
    uid: int = 0
    writable: bool = False

    @property
    def is_full(self) -> bool:
        return self.there and self.free < 0.01 * self.size


@dataclass(frozen=True, kw_only=True)
class NodePath:
    """A file or directory that a job reads; `sum` is over names, sizes and samples."""

    path: str
    there: bool
    said: str = ""
    files: int = 0
    bytes: int = 0
    sum: str = ""


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
    started: str = ""
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
    """One node; memory in bytes, `ephemeral` the first and last port of the kernel's choice.

    `names` are the addresses that names have there; `identity` is the same for two names of one machine; `record` is
    the plan that lies on its data disk; `installation` is None where the target was not installed there.
    """

    identity: str
    host: str
    uid: int
    gid: int
    user: str
    cores: int
    memory: int
    nofile: int
    ephemeral: tuple[int, int]
    addresses: tuple[InterfaceAddress, ...]
    names: Mapping[str, tuple[str, ...]]
    gpu: NodeGpus
    engine: NodeEngine
    disk: NodeDisk
    listening: tuple[Listener, ...] = ()
    clusters: tuple[RayInstance, ...] = ()
    record: str = ""
    installation: Installation | None = None
    paths: tuple[NodePath, ...] = ()

    @functools.cached_property
    def reachable_addresses(self) -> tuple[InterfaceAddress, ...]:
        """The addresses by which others may reach it, those of IPv4 first."""
        return tuple(sorted((one for one in self.addresses if one.is_reachable), key=lambda one: ":" in one.address))

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
