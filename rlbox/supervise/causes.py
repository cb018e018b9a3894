"""Why a stage failed that could not be carried out to its end, in one sentence."""

from __future__ import annotations

from rlbox.amounts import duration_text, limit_text, size_text
from rlbox.diagnose.cause import Cause, describe_exit, get_stage_log_path, resolve_log_path
from rlbox.job.gate_plan import ReadyPlan
from rlbox.job.plan import ClusterRun, NodePlan, RayPlan, ServicePlan, StagePlan

_LONGER = 1.2
"""How many times longer than its limit a start has taken that was given more."""
_RAY_EXITED = "Job entrypoint command failed with exit code"  # says nothing that the exit code does not


def absent_fix(fix_id: str, seen: str, remedy: str, others: int, doctor: str) -> Cause:
    """A fix of the image does not hold on this machine; `others` more do not either, which the line `doctor` tells."""
    more = f" ({others} more do not hold either)" if others else ""
    return Cause(
        kind="fix",
        what=f"fix {fix_id} does not hold in this container: {seen}{more}",
        next_step=f"{remedy} (`rlbox {doctor}` tells all)" if others else remedy,
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
        what=f"service {service.name} ended with {describe_exit(code)} {when}",
        where=resolve_log_path(stage, service.name),
    )


def never_ready(stage: StagePlan, service: ServicePlan, answer: str, took_s: float) -> Cause:
    """A service did not answer as told within its start limit, or as long as it got on beyond it: `took_s` in all."""
    late = took_s > _LONGER * service.start_s
    took = f"{duration_text(took_s)} (limit {limit_text(service.start_s)})" if late else limit_text(service.start_s)
    return Cause(
        kind="ready",
        what=f"service {service.name} was not ready after {took}: {_asked(service.ready)}: {answer}",
        where=resolve_log_path(stage, service.name),
        next_step=f"read its log; if it was only slow, raise start_s of service {service.name}",
    )


def _asked(ready: ReadyPlan) -> str:
    """Return in words what a service must show to be ready."""
    parts = [f"{ready.method} {ready.url}" if ready.url else "", f"port {ready.port}" if ready.port else ""]
    return " and ".join(part for part in (*parts, f"a line like /{ready.line}/" if ready.line else "") if part)


def lost_service(stage: StagePlan, service: ServicePlan, code: int, started_by: str) -> Cause:
    """A service that was kept from an earlier stage ended before this one could use it."""
    return Cause(
        kind="service",
        what=f"service {service.name} ended with {describe_exit(code)} between stages {started_by} and {stage.name}",
        where=resolve_log_path(stage, service.name),
    )


def mute_service(stage: StagePlan, service: ServicePlan, answer: str) -> Cause:
    """A service that was ready got the request right no more."""
    return Cause(
        kind="silence",
        what=f"service {service.name} has not answered for {limit_text(service.answer_s)} while stage {stage.name} was "
        f"running: {_asked(service.ready)}: {answer}",
        where=resolve_log_path(stage, service.name),
        next_step=f"if it was only busy, raise answer_s of service {service.name}",
    )


def silent_service(stage: StagePlan, service: ServicePlan) -> Cause:
    """The log of a service did not grow for longer than its limit."""
    return Cause(
        kind="silence",
        what=f"service {service.name} wrote nothing for {limit_text(service.silence_s)} while stage {stage.name} "
        "was running",
        where=resolve_log_path(stage, service.name),
        next_step=f"if that was no hang, raise silence_s of service {service.name}",
    )


def failed_ray(stage: StagePlan, ray: RayPlan, status: str, code: int | None, message: str) -> Cause:
    """The Ray job did not end with SUCCEEDED."""
    detail = "" if code is None else f" (driver {describe_exit(code)})"
    first = [line for line in message.strip().splitlines()[:1] if not line.startswith(_RAY_EXITED)]
    said = f": {first[0][:300]}" if first else ""
    return Cause(
        kind="ray",
        what=f"Ray job {ray.submission_id} of stage {stage.name} ended {status}{detail}{said}",
        where=get_stage_log_path(stage),
    )


def lost_node(stage: StagePlan, node: NodePlan, seen: str, cluster: ClusterRun, run: str, then: str = "") -> Cause:
    """A node of the cluster that the run is on is gone; `then` is what followed from it."""
    return Cause(
        kind="node",
        what=f"node {node.name} of cluster {cluster.name} is gone: {seen}" + (f"; then {then}" if then else ""),
        where=get_stage_log_path(stage),
        next_step=f"rlbox cluster up {cluster.words} brings back what died, "
        f"rlbox run --resume {run} {cluster.options} goes on",
    )


def undeclared_listener(stage: StagePlan, part: str, holder: str, address: str, port: int) -> Cause:
    """Something waits for connections of others that the job does not declare."""
    who = f"stage {stage.name}" if part in ("main", "other") else f"service {part}"
    return Cause(
        kind="listens",
        what=f"{holder} of {who} listens on {address}, which the job does not declare",
        next_step=f'have it listen on 127.0.0.1; if others are to reach it: listens = ["{port}"] of {who} in the job',
    )


def too_long(stage: StagePlan) -> Cause:
    """The stage ran past its limit."""
    return Cause(
        kind="total",
        what=f"stage {stage.name} ran longer than {limit_text(stage.total_s)} and was stopped",
        where=get_stage_log_path(stage),
        next_step=f"if that was no hang, raise limits.total_s of stage {stage.name}",
    )


def out_of_memory(cause: Cause, limit_bytes: int | None) -> Cause:
    """The kernel ended processes of the stage because the container's memory limit was reached."""
    limit = f"container limit {size_text(limit_bytes)}" if limit_bytes else "no container limit, host memory"
    return Cause(
        kind="oom",
        what=f"out of memory: {limit}; then {cause.what}",
        where=cause.where,
        next_step="give the container more memory, or use a smaller batch or model",
    )


def supervisor_bug(error: BaseException, where: str) -> Cause:
    """The supervisor itself failed."""
    return Cause(kind="bug", what=f"error in rlbox: {type(error).__name__}: {error}", where=where)
