"""What the server sends to a worker, and what the worker answers: two values that cross a socket as JSON."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rlbox.sandbox.request import RequestLimits

LANDLOCK, SECCOMP, FORKS, CGROUP = "landlock", "seccomp", "forks", "group"
LAYERS = (LANDLOCK, SECCOMP, FORKS, CGROUP)
"""`landlock`: files. `seccomp`: system calls. These two are the wall. `forks`: the worker is asked for each new process
and thread, so that there are never more than the limit. `group`: a control group that counts processor time and bounds
memory."""

StopReason = Literal["", "cpu", "sleep", "wall", "memory", "disk", "output", "tasks", "start", "cancelled"]
"""The limit that was passed first, `start` where a program could not be started, `cancelled`, or empty."""


def has_landlock_and_seccomp(layers: Collection[str]) -> bool:
    return {LANDLOCK, SECCOMP} <= set(layers)


def format_isolation_strength(layers: Collection[str]) -> str:
    return "+".join(layers) if has_landlock_and_seccomp(layers) else "limits only"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The programs of one request, to be started together; the first to end ends them all.

    `files` has content in base64 by path below the programs' folder. With `check` (keys `tests`, `before` and
    `called_functions`) the first of two programs is the checker.
    """

    concurrent_programs: list[list[str]]
    files: dict[str, str]
    limits: RequestLimits
    readable_paths: list[str]
    wanted_layers: list[str]
    scratch: str = ""
    stdin: str = ""
    fetch: list[str] = field(default_factory=list)
    check: dict[str, Any] | None = None


@dataclass(frozen=True)
class ProgramExit:
    return_code: int | None
    stdout: str
    stderr: str


@dataclass(frozen=True, kw_only=True)
class PlanOutcome:
    """How the programs of a plan ended.

    `verdict` is the checker's last line, without the number that proves it; `files` has what was fetched, in base64.
    """

    limit: StopReason
    message: str = ""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    memory_mb: int = 0
    programs: list[ProgramExit] = field(default_factory=list)
    verdict: str = ""
    layers: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    has_live_processes: bool = False
    files: dict[str, str] = field(default_factory=dict)


def encode_json_line(message: Plan | PlanOutcome) -> bytes:
    return json.dumps(asdict(message)).encode() + b"\n"


def decode_plan(line: bytes) -> Plan:
    values = json.loads(line)
    return Plan(**{**values, "limits": RequestLimits(**values["limits"])})


def decode_outcome(line: bytes) -> PlanOutcome:
    values = json.loads(line)
    return PlanOutcome(**{**values, "programs": [ProgramExit(**program) for program in values["programs"]]})
