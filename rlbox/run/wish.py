"""What the command line asks of a run; read by every verb, so it imports next to nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DEFAULT_TARGET = "local"
"""The target whose data disk a verb about runs looks at when none is named."""


@dataclass(frozen=True, kw_only=True)
class RunWish:
    """How a run is started: where, from which stage, left alone at once or followed, and with which values.

    `target` and `data` are as on the command line, None for what the job, the environment or the target says; `place`
    is a name of `run/places.py`, and a resumed run has its own.
    """

    place: str
    target: str | None = None
    data: str | None = None
    profiles: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    env_file: str | None = None
    gpus: str = ""
    detach: bool = False
    first_stage: str = ""
    force: bool = False
