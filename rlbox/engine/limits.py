"""Limits and data disk of the containers of an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class ContainerDefaults:
    """Limits and data disk of containers started from the image; GiB, 0 means no limit.

    `ulimits` and `cap_add` are those of the fixes below the target's own; an empty limit is left to the engine. `gpus`
    is how many GPUs they get: 0 for none, -1 for all of the machine; `gpu`, `arch` and `grade` say which are meant.
    `devices` maps devices of the machine, or folders of them, to what may be done with them (`rwm`). `open` says that
    strangers may reach what listens in them.
    """

    network: str
    shm_gib: float
    memory_gib: float
    cpus: float
    pids: int
    user: str
    mount: str
    host: str
    create: bool
    need_gib: float
    ulimits: Mapping[str, str] = field(default_factory=dict)
    cap_add: tuple[str, ...] = ()
    devices: Mapping[str, str] = field(default_factory=dict)
    open: bool = False
    gpus: int = 0
    gpu: str = ""
    arch: str = ""
    grade: str = ""
