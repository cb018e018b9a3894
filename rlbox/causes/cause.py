"""Why a stage ended as it did, in one sentence, and the exit code that belongs to it."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal

from rlbox.errors import Interrupted, NodeError, TimedOut, WorkFailed
from rlbox.job.names import FileFact
from rlbox.job.plan import FilePlan, LinePlan, RayPlan, ReadyPlan, ServicePlan, StagePlan

CauseKind = Literal[
    "fix", "need", "port", "program", "service", "ready", "forbid", "exit", "ray", "require", "file", "silence",
    "total", "oom", "disk", "interrupted", "bug", "lost", "within", "metric", "probe",
]  # fmt: skip

_NODE: frozenset[CauseKind] = frozenset({"fix", "need", "port", "disk"})
_TIME: frozenset[CauseKind] = frozenset({"ready", "silence", "total", "within"})
_RAY_EXITED = "Job entrypoint command failed with exit code"  # says nothing that the exit code does not
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


def needed_file(stage: StagePlan, need: FilePlan, fact: FileFact) -> Cause:
    """A file that an earlier stage should have left whole is not."""
    why = f" ({need.why})" if need.why else ""
    return Cause(
        kind="need",
        what=f"stage {stage.name} needs {need.path}{why}: {fact.problem}",
        where=need.path,
        next_step="run again from the stage that writes it",
    )


def taken_port(port: str, number: int, holder: str) -> Cause:
    """A port that a service listens on is held by another process."""
    return Cause(
        kind="port",
        what=f"port {number} ({port}) is taken by {holder}",
        next_step=f"end that process if it is yours, or give ports.{port} of the job another number",
    )


def absent_fix(fix_id: str, seen: str, remedy: str, others: int) -> Cause:
    """A fix of the image does not hold on this machine; `others` more do not either."""
    more = f" ({others} more do not hold either)" if others else ""
    return Cause(
        kind="fix",
        what=f"fix {fix_id} does not hold in this container: {seen}{more}",
        next_step=f"{remedy} (`rlbox doctor` tells all)" if others else remedy,
    )


def missing_program(stage: StagePlan, part: str, program: str, reason: str) -> Cause:
    """A command could not be started at all."""
    who = f"stage {stage.name}" if part == "main" else f"service {part} of stage {stage.name}"
    return Cause(kind="program", what=f"{who} cannot start {program}: {reason}")


def dead_service(stage: StagePlan, service: ServicePlan, code: int, *, ready: bool, running: bool) -> Cause:
    """A service ended before its stage did."""
    when = f"while stage {stage.name} was {'running' if running else 'starting'}" if ready else "before it was ready"
    return Cause(
        kind="service",
        what=f"service {service.name} ended with {ended(code)} {when}",
        where=log_path(stage, service.name),
    )


def never_ready(stage: StagePlan, service: ServicePlan, answer: str) -> Cause:
    """A service did not answer as told within its start limit."""
    return Cause(
        kind="ready",
        what=f"service {service.name} was not ready after {service.start_s:g} s: {asked(service.ready)}: {answer}",
        where=log_path(stage, service.name),
        next_step=f"read its log; if it was only slow, raise start_s of service {service.name}",
    )


def asked(ready: ReadyPlan) -> str:
    """Return in words what a service must show to be ready."""
    parts = [f"{ready.method} {ready.url}" if ready.url else "", f"port {ready.port}" if ready.port else ""]
    return " and ".join(part for part in (*parts, f"a line like /{ready.line}/" if ready.line else "") if part)


def lost_service(stage: StagePlan, service: ServicePlan, code: int, before: str) -> Cause:
    """A service that was kept from an earlier stage ended before this one could use it."""
    return Cause(
        kind="service",
        what=f"service {service.name} ended with {ended(code)} between stages {before} and {stage.name}",
        where=log_path(stage, service.name),
    )


def mute_service(stage: StagePlan, service: ServicePlan, answer: str) -> Cause:
    """A service that was ready got the request right no more."""
    return Cause(
        kind="silence",
        what=f"service {service.name} has not answered for {service.answer_s:g} s while stage {stage.name} was "
        f"running: {asked(service.ready)}: {answer}",
        where=log_path(stage, service.name),
        next_step=f"if it was only busy, raise answer_s of service {service.name}",
    )


def silent_service(stage: StagePlan, service: ServicePlan) -> Cause:
    """The log of a service did not grow for longer than its limit."""
    return Cause(
        kind="silence",
        what=f"service {service.name} wrote nothing for {service.silence_s:g} s while stage {stage.name} was running",
        where=log_path(stage, service.name),
        next_step=f"if that was no hang, raise silence_s of service {service.name}",
    )


def forbidden_line(stage: StagePlan, rule: LinePlan, number: int, line: str) -> Cause:
    """A log held a line that it must not hold."""
    why = f" ({rule.why})" if rule.why else ""
    return Cause(
        kind="forbid",
        what=f"stage {stage.name} was stopped: its log held the forbidden line /{rule.pattern}/{why}",
        where=f"{log_path(stage, rule.log)}:{number}",
        line=line,
    )


def failed_exit(stage: StagePlan, code: int) -> Cause:
    """The stage's command ended with something else than 0."""
    return Cause(kind="exit", what=f"stage {stage.name} ended with {ended(code)}", where=stage_log(stage))


def failed_ray(stage: StagePlan, ray: RayPlan, status: str, code: int | None, message: str) -> Cause:
    """The Ray job did not end with SUCCEEDED."""
    detail = "" if code is None else f" (driver {ended(code)})"
    first = [line for line in message.strip().splitlines()[:1] if not line.startswith(_RAY_EXITED)]
    return Cause(
        kind="ray",
        what=f"Ray job {ray.submission_id} of stage {stage.name} ended {status}{detail}",
        where=stage_log(stage),
        next_step=f"Ray says: {first[0][:300]}" if first else "",
    )


def missing_line(stage: StagePlan, rule: LinePlan, count: int, last: str) -> Cause:
    """The stage exited 0, but a line that proves its work never came."""
    often = "never" if count == 0 else f"only {count} times, not {rule.count},"
    seen = f"; its last line was: {last}" if last else "; it is empty"
    return Cause(
        kind="require",
        what=f"stage {stage.name} exited 0, but {log_path(stage, rule.log)} {often} held a line like "
        f"/{rule.pattern}/{seen}",
        where=log_path(stage, rule.log),
        next_step=rule.why,
    )


def missing_file(stage: StagePlan, file: FilePlan, fact: FileFact) -> Cause:
    """The stage exited 0, but did not leave a file that it must."""
    why = f" ({file.why})" if file.why else ""
    return Cause(
        kind="file", what=f"stage {stage.name} exited 0, but {file.path}{why}: {fact.problem}", where=file.path
    )


def too_long(stage: StagePlan) -> Cause:
    """The stage ran past its limit."""
    return Cause(
        kind="total",
        what=f"stage {stage.name} ran longer than {stage.total_s:g} s and was stopped",
        where=stage_log(stage),
        next_step=f"if that was no hang, raise limits.total_s of stage {stage.name}",
    )


def out_of_memory(cause: Cause, limit_bytes: int | None) -> Cause:
    """The kernel ended processes of the stage because the container's memory limit was reached."""
    limit = f"container limit {limit_bytes / 2**30:.3g} GiB" if limit_bytes else "no container limit, host memory"
    return Cause(
        kind="oom",
        what=f"out of memory: {limit}; then {cause.what}",
        where=cause.where,
        next_step="give the container more memory, or use a smaller batch or model",
    )


def full_disk(path: str, free_bytes: int) -> Cause:
    """Nothing more can be written."""
    return Cause(
        kind="disk",
        what=f"data disk full: {free_bytes / 2**20:.1f} MiB free at {path}",
        where=path,
        next_step="free space there, then run again",
    )


def unwritable(path: str, reason: str) -> Cause:
    """The run's own files cannot be written, for another reason than a full disk."""
    return Cause(kind="disk", what=f"the run directory cannot be written: {reason}", where=path)


def interrupted(signal_name: str) -> Cause:
    """The user or the engine asked the supervisor to stop."""
    return Cause(kind="interrupted", what=f"interrupted by {signal_name}")


def supervisor_bug(error: BaseException, where: str) -> Cause:
    """The supervisor itself failed."""
    return Cause(kind="bug", what=f"error in rlbox: {type(error).__name__}: {error}", where=where)
