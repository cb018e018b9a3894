"""What a node reports of itself, as values."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from rlbox.cluster.node.facts import FileSystemBytes, PartAndExitCode
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
    """A GPU; `uncorrected_errors` of its memory, `users` processes on it with their owners."""

    index: int
    name: str
    memory_bytes: int
    used_bytes: int
    driver: str
    uncorrected_errors: int = 0
    users: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NodeGpus:
    """The GPUs of a node, and what its driver said where it failed."""

    gpus: tuple[NodeGpu, ...] = ()
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeEngine:
    """The engine of a node."""

    socket: str
    state: Literal["ok", "absent", "denied", "silent"]
    error: str = ""
    version: str = ""
    security: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Installation:
    """A target that `apply` installed: `directory` is where rlbox is.

    `is_image_install`: it is the image of the container that the node is. `is_complete`: the last `apply` ended well.
    """

    directory: str
    lock_checksum: str
    data_disk: str = ""
    is_complete: bool = True
    is_image_install: bool = False


@dataclass(frozen=True, kw_only=True)
class NodeDisk:
    """A directory that is to be a data disk; sizes in bytes."""

    path: str
    there: bool
    error: str = ""
    free: FileSystemBytes = 0
    size: FileSystemBytes = 0
    mode: int = 0
    uid: int = 0
    writable: bool = False

    @property
    def is_full(self) -> bool:
        return self.there and self.free < 0.01 * self.size


@dataclass(frozen=True, kw_only=True)
class RayInstance:
    """Ray on a node: a container of its engine, or processes (`here-…`)."""

    id: str
    name: str
    image: str
    labels: Mapping[str, str]
    status: str
    exit_code: int = 0
    oom: bool = False
    finished: str = ""
    first_ended_part: PartAndExitCode = ""

    @property
    def is_running(self) -> bool:
        return self.status in ACTIVE_STATES

    @property
    def is_inplace(self) -> bool:
        """Whether it is processes of a user, and no container."""
        return self.id.startswith("here-")


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """One node; `listening` are ports, `identity` is the same for two names of one machine.

    `installation` is None where the target was not installed there; `paths` are those of a job's that it has;
    `clock_before_after_s` is its time before and after it looked.
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
    clock_before_after_s: tuple[float, float] = (0.0, 0.0)

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
