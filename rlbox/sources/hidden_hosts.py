"""Hosts that software contacts without being asked to: the schema of the shipped `egress.toml`."""

from __future__ import annotations

import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from rlbox.sources.profile import Host, Kind, Phase
from rlbox.spec.kinds import EnvName, Frozen, Line

# `NAME` (set to anything), or `NAME=VALUE|VALUE`, compared without regard to case.
Condition = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(=[^|]+(\|[^|]+)*)?$")]


class HiddenHost(Frozen):
    """One host that something contacts by itself, and what makes it stop."""

    host: Host
    kind: Kind = "http"
    phase: Phase
    packages: tuple[Line, ...] = Field((), description="any of them in the lock; empty: whatever the lock holds")
    sdist: bool = Field(False, description="only when the lock has the package as a source archive")
    registry: Line = Field("", description="only when the base image comes from this registry")
    when: tuple[Condition, ...] = Field((), description="any of these in the target's environment; empty: always")
    unless: tuple[Condition, ...] = Field((), description="any of these in the target's environment closes it")
    replaced_by: EnvName | None = Field(None, description="variable whose address takes the host's place")
    why: Line
    rule: Line = Field(description="what closes it, or where else its bytes can come from")
    source: Line
    checked: datetime.date


class HiddenHosts(Frozen):
    """The table of hidden hosts."""

    row: tuple[HiddenHost, ...]
