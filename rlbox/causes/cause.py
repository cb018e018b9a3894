"""Why a stage ended as it did, in one sentence, and the exit code that belongs to it."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal

from rlbox.amounts import size_text
from rlbox.errors import Interrupted, NodeError, TimedOut, WorkFailed
from rlbox.job.plan import StagePlan

CauseKind = Literal[
    "fix", "need", "port", "program", "service", "ready", "forbid", "exit", "ray", "require", "file", "silence",
    "total", "oom", "disk", "interrupted", "bug", "lost", "within", "metric", "probe",
]  # fmt: skip

_NODE: frozenset[CauseKind] = frozenset({"fix", "need", "port", "disk"})
_TIME: frozenset[CauseKind] = frozenset({"ready", "silence", "total", "within"})
UNEXPECTED = 3
"""Exit code of an error in rlbox itself (STYLE, exit codes)."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The first thing that went wrong.

    `where` is a log below the run directory, with `:NUMBER` when `line` quotes that line of it. `known` is the id of
    the fix that knows this failure, empty when none does. Of a hang, `phase` is where it happened, `waits` says what
    the first of its processes waits for, and `report` is the page below the run directory that says the rest.
    """

    kind: CauseKind
    what: str
    where: str = ""
    line: str = ""
    next_step: str = ""
    known: str = ""
    phase: str = ""
    waits: str = ""
    report: str = ""


def exit_code(cause: Cause | None) -> int:
    """Return the supervisor's exit code for a run that ended with `cause` (None: passed)."""
    if cause is None:
        return 0
    if cause.kind == "interrupted":
        return Interrupted.exit_code
    if cause.kind == "bug":
        return UNEXPECTED
    if cause.kind in _NODE:
        return NodeError.exit_code
    return TimedOut.exit_code if cause.kind in _TIME else WorkFailed.exit_code


def ended(code: int) -> str:
    """Return how a process ended, in words: `exit code 3`, `signal 9 (SIGKILL)`; `code` is negative for a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def stage_log(stage: StagePlan) -> str:
    """Return the path, below the run directory, of the log of the stage's own command."""
    return f"{stage.directory}/stage.log"


def log_path(stage: StagePlan, log: str) -> str:
    """Return the path, below the run directory, of the log that a line rule names."""
    services = {service.name: service.log for service in stage.services}
    return f"{stage.directory}/{services[log]}" if log in services else stage_log(stage)


def taken_port(port: str, number: int, holder: str) -> Cause:
    """A port that a service listens on is held by another process."""
    return Cause(
        kind="port",
        what=f"port {number} ({port}) is taken by {holder}",
        next_step=f"end that process if it is yours, or give ports.{port} of the job another number",
    )


def full_disk(path: str, free_bytes: int) -> Cause:
    """Nothing more can be written."""
    return Cause(
        kind="disk",
        what=f"data disk full: {size_text(free_bytes)} free at {path}",
        where=path,
        next_step="free space there, then run again",
    )


def unwritable(path: str, reason: str) -> Cause:
    """The run's own files cannot be written, for another reason than a full disk."""
    return Cause(kind="disk", what=f"the run directory cannot be written: {reason}", where=path)


def interrupted(signal_name: str) -> Cause:
    """The user or the engine asked the supervisor to stop."""
    return Cause(kind="interrupted", what=f"interrupted by {signal_name}")
