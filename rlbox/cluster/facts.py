"""What a node says of itself: the values behind the answer of its program."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rlbox.errors import NodeError
from rlbox.i18n import _

GOING = ("created", "running", "restarting", "paused")


@dataclass(frozen=True, kw_only=True)
class NodeAddress:
    """One address; `mtu` in bytes, `speed` of its interface in Mbit/s, 0 where the driver does not tell."""

    interface: str
    address: str
    mtu: int
    speed: int = 0
    virtual: bool = False

    @property
    def usable(self) -> bool:
        """Whether another machine could reach it: not loopback, not of the link alone, not of a bridge of engines."""
        ip = ipaddress.ip_address(self.address)
        inner = self.interface.startswith(("docker", "br-", "veth", "virbr", "cni", "flannel"))
        return not (ip.is_loopback or ip.is_link_local or ip.is_unspecified or inner or self.virtual)


@dataclass(frozen=True, kw_only=True)
class PortUse:
    """A TCP port that somebody listens on; `uid` owns the socket."""

    port: int
    address: str
    uid: int
    inode: str


_OWN_TITLES = ("ray-dashboard-", "ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Names of parts of Ray. Source: AGENT_PROCESS_TYPE_* and dashboard/subprocesses/module.py of 2.60."""


@dataclass(frozen=True, kw_only=True)
class Listener:
    """A TCP port that a process of a cluster listens on; `words` are its command line."""

    port: int
    address: str
    pid: int
    words: str

    @property
    def own(self) -> bool:
        """Whether it is a part of Ray's itself, and neither a worker nor a job."""
        by_path = "/site-packages/ray/" in self.words and not self.words.startswith("ray::")
        return by_path or self.words.startswith(_OWN_TITLES)

    @property
    def loopback(self) -> bool:
        """Whether only the node itself reaches it."""
        ip = ipaddress.ip_address(self.address)
        return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


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
    words: str
    user: str


@dataclass(frozen=True, kw_only=True)
class NodeGpus:
    """The GPUs of a node, and what its driver said where it failed."""

    gpus: tuple[NodeGpu, ...] = ()
    holders: tuple[GpuProcess, ...] = ()
    said: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeEngine:
    """The engine; `state` is ok, absent, denied, silent or broken; `free` in bytes."""

    socket: str
    state: str
    said: str = ""
    version: str = ""
    root: str = ""
    free: int = 0
    security: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NodePlace:
    """Where a target was brought to a node: `own` the folder of what rlbox has there, `lock` the lock's checksum.

    `data` is the data disk that it was brought there for, empty for a container of the target's own `image`; `whole`
    says that the last `rlbox apply` came to its end.
    """

    own: str
    lock: str
    data: str = ""
    whole: bool = True
    image: bool = False


@dataclass(frozen=True, kw_only=True)
class NodeDisk:
    """A folder that is to be a data disk; sizes in bytes, `root` whether it lies on the system's own disk."""

    path: str
    there: bool
    said: str = ""
    root: bool = False
    free: int = 0
    size: int = 0
    inodes: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    writable: bool = False


@dataclass(frozen=True, kw_only=True)
class NodePath:
    """A file or folder that a job reads; `sum` is over names, sizes and samples."""

    path: str
    there: bool
    said: str = ""
    files: int = 0
    bytes: int = 0
    sum: str = ""


@dataclass(frozen=True, kw_only=True)
class ClusterContainer:
    """A container of some cluster, as the engine knows it, or a life of Ray's processes, as its keeper wrote it down.

    `said` is which part of Ray ended first, as Ray tells it, with its exit code.
    """

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
    def going(self) -> bool:
        """Whether it runs, or is about to."""
        return self.status in GOING

    @property
    def here(self) -> bool:
        """Whether it is processes of a user, and no container."""
        return self.id.startswith("here-")


@dataclass(frozen=True, kw_only=True)
class Rights:
    """By which program rules for the network are made there, empty for none, and what is typed before it."""

    tool: str
    before: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """One node; `clock` in seconds since 1970, memory in bytes, `ephemeral` the first and last port of the kernel's.

    `names` are the addresses that names have there, its own `host` among them; `identity` is the same for two names of
    one machine; `image` is what its engine says of the target's image; `record` that of the cluster that was asked for;
    `place` where the target was brought to it, None where it was not.
    """

    identity: str
    host: str
    uid: int
    gid: int
    user: str
    clock: float
    cores: int
    memory: int
    nofile: int
    ephemeral: tuple[int, int]
    rights: Rights
    addresses: tuple[NodeAddress, ...]
    names: Mapping[str, tuple[str, ...]]
    listening: tuple[PortUse, ...]
    gpu: NodeGpus
    engine: NodeEngine
    disk: NodeDisk
    clusters: tuple[ClusterContainer, ...] = ()
    image: Mapping[str, Any] | None = None
    record: str = ""
    place: NodePlace | None = None
    paths: tuple[NodePath, ...] = ()

    @functools.cached_property
    def usable(self) -> tuple[NodeAddress, ...]:
        """The addresses by which others may reach it, those of IPv4 first."""
        return tuple(sorted((one for one in self.addresses if one.usable), key=lambda one: ":" in one.address))

    def interface_of(self, address: str) -> NodeAddress | None:
        """Return the address with its interface, None where the node has no such address."""
        return next((one for one in self.addresses if one.address == address), None)


def read_facts(name: str, row: Mapping[str, Any]) -> NodeFacts:
    """Return the facts of an answer; `NodeError` where they are none."""
    try:
        return _adapter().validate_python(row)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise NodeError(
            _("node {name} says what cannot be read: {key}: {msg}").format(name=name, key=key, msg=first["msg"])
        ) from error


def container_of(row: Mapping[str, Any]) -> ClusterContainer:
    """Return the container of a row that a node's program tells."""
    return _container().validate_python(row)


def disk_of(row: Mapping[str, Any]) -> NodeDisk:
    """Return the data disk of a row that a node's program tells."""
    return TypeAdapter(NodeDisk).validate_python(row)


@functools.lru_cache(maxsize=1)
def _container() -> TypeAdapter[ClusterContainer]:
    return TypeAdapter(ClusterContainer)


@functools.lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[NodeFacts]:
    return TypeAdapter(NodeFacts)
