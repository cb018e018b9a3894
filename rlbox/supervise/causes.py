"""Why a stage failed, in one sentence: a rule of its gate, a service, a limit, the machine."""

from __future__ import annotations

from rlbox.amounts import decimal_size_text, duration_text, exact_duration_text
from rlbox.diagnose.cause import Cause, CauseKind, describe_exit, get_service_or_stage_log_path, get_stage_log_path
from rlbox.gate.files import FileCheckResult
from rlbox.gate.line_rules import ForbiddenLineMatch, RequiredLineTracker, RuleViolation
from rlbox.job.gate import FileRule, MetricRule, ProbeRule
from rlbox.job.plan import NodePlan, RayPlan, RunCluster, ServicePlan, StagePlan
from rlbox.supervise.ray_jobs import RayJobInfo

_RAY_EXITED = "Job entrypoint command failed with exit code"  # says nothing that the exit code does not


def explain_violation(stage: StagePlan, violation: RuleViolation) -> Cause:
    rule, line = violation.rule, violation.line
    where = get_service_or_stage_log_path(stage, rule.log)
    if isinstance(rule, MetricRule):
        kind: CauseKind = "metric"
        what = f"metric {violation.problem}{_in_brackets(rule.why)}; the rule is {rule.describe()}"
    else:
        kind = "within" if violation.timed_out else "require"
        what = f"the rule /{rule.describe()}/{_in_brackets(rule.why)} is broken: {violation.problem}"
    return Cause(
        kind=kind,
        what=f"stage {stage.name}: {what}",
        where=f"{where}:{line.number}" if line else where,
        line=line.text if line else "",
    )


def explain_forbidden_line(stage: StagePlan, forbidden: ForbiddenLineMatch) -> Cause:
    rule, line = forbidden.rule, forbidden.line
    pattern = f"/{rule.pattern}/{_in_brackets(rule.why)}"
    return Cause(
        kind="forbid",
        what=f"stage {stage.name} was stopped: its log held the forbidden line {pattern}",
        where=f"{get_service_or_stage_log_path(stage, rule.log)}:{line.number}",
        line=line.text,
    )


def explain_line_missing_after_exit_0(stage: StagePlan, missing: RequiredLineTracker, last_line: str) -> Cause:
    rule, log = missing.rule, get_service_or_stage_log_path(stage, missing.rule.log)
    count = missing.state.count
    often = f"only {count} times, not {rule.count}," if count else "never"
    last = f"; its last line was: {last_line}" if last_line else "; it is empty"
    return Cause(
        kind="require",
        what=f"stage {stage.name} exited 0, but {log} {often} held a line like "
        f"/{rule.pattern}/{_in_brackets(rule.why)}{last}",
        where=log,
        next_step="read its end: the log says how far the work came before it ended as if all were well",
    )


def explain_failed_probe(stage: StagePlan, probe: ProbeRule, problem: str) -> Cause:
    request = f"{probe.describe()}{_in_brackets(probe.why)}"
    return Cause(
        kind="probe",
        what=f"stage {stage.name} ended well, but {request} was not answered as told: {problem}",
        next_step="send the same request by hand while the service runs, and read its log",
    )


def explain_unusable_needed_file(stage: StagePlan, need: FileRule, check: FileCheckResult) -> Cause:
    return Cause(
        kind="need",
        what=f"stage {stage.name} needs {need.path}{_in_brackets(need.why)}: {check.problem}",
        where=need.path,
        next_step="run again from the stage that writes it",
    )


def explain_unusable_output_file(stage: StagePlan, file: FileRule, check: FileCheckResult) -> Cause:
    what = f"stage {stage.name} exited 0, but {file.path}{_in_brackets(file.why)}: {check.problem}"
    return Cause(kind="file", what=what, where=file.path)


def explain_wrong_exit_code(stage: StagePlan, returncode: int) -> Cause:
    good = " or ".join(str(number) for number in stage.exit_codes)
    instead = "" if stage.exit_codes == (0,) else f", not with exit code {good}"
    what = f"stage {stage.name} ended with {describe_exit(returncode)}{instead}"
    return Cause(kind="exit", what=what, where=get_stage_log_path(stage))


def explain_failed_fix(fix_id: str, seen: str, remedy: str, other_failed_count: int, doctor_command: str) -> Cause:
    more = f" ({other_failed_count} more do not hold either)" if other_failed_count else ""
    return Cause(
        kind="fix",
        what=f"fix {fix_id} does not hold in this container: {seen}{more}",
        next_step=f"{remedy} (`rlbox {doctor_command}` tells all)" if other_failed_count else remedy,
    )


def explain_failed_start(stage: StagePlan, service_or_main: str, program: str, reason: str) -> Cause:
    who = f"stage {stage.name}" if service_or_main == "main" else f"service {service_or_main} of stage {stage.name}"
    return Cause(kind="program", what=f"{who} cannot start {program}: {reason}")


def explain_service_exit(stage: StagePlan, service: ServicePlan, code: int, when: str) -> Cause:
    return Cause(
        kind="service",
        what=f"service {service.name} ended with {describe_exit(code)} {when}",
        where=get_service_or_stage_log_path(stage, service.name),
    )


def explain_slow_service_start(stage: StagePlan, service: ServicePlan, last_problem: str, took_s: float) -> Cause:
    took = f"{duration_text(took_s)} (limit {exact_duration_text(service.start_s)})"
    return Cause(
        kind="ready",
        what=f"service {service.name} was not ready after {took}: {service.ready.describe()}: {last_problem}",
        where=get_service_or_stage_log_path(stage, service.name),
        next_step=f"read its log; if it was only slow, raise start_s of service {service.name}",
    )


def explain_unresponsive_service(stage: StagePlan, service: ServicePlan, last_problem: str) -> Cause:
    return Cause(
        kind="silence",
        what=f"service {service.name} has not answered for {exact_duration_text(service.answer_s)} while stage "
        f"{stage.name} was running: {service.ready.describe()}: {last_problem}",
        where=get_service_or_stage_log_path(stage, service.name),
        next_step=f"if it was only busy, raise answer_s of service {service.name}",
    )


def explain_failed_ray_job(stage: StagePlan, ray: RayPlan, info: RayJobInfo) -> Cause:
    status, detail = info.status, "" if info.exit_code is None else f" (driver {describe_exit(info.exit_code)})"
    first = [line for line in info.message.strip().splitlines()[:1] if not line.startswith(_RAY_EXITED)]
    said = f": {first[0][:300]}" if first else ""
    return Cause(
        kind="ray",
        what=f"Ray job {ray.submission_id} of stage {stage.name} ended {status}{detail}{said}",
        where=get_stage_log_path(stage),
    )


def explain_lost_node(
    stage: StagePlan, node: NodePlan, problem: str, cluster: RunCluster, run_id: str, consequence: str = ""
) -> Cause:
    then = f"; then {consequence}" if consequence else ""
    return Cause(
        kind="node",
        what=f"node {node.name} of cluster {cluster.name} is gone: {problem}{then}",
        where=get_stage_log_path(stage),
        next_step=f"rlbox cluster up {cluster.words} brings back what died, "
        f"rlbox run --resume {run_id} {cluster.options} goes on",
    )


def explain_undeclared_listener(stage: StagePlan, service_or_main: str, process: str, address: str, port: int) -> Cause:
    who = f"stage {stage.name}" if service_or_main in ("main", "other") else f"service {service_or_main}"
    return Cause(
        kind="listens",
        what=f"{process} of {who} listens on {address}, which the job does not declare",
        next_step=f'have it listen on 127.0.0.1; if others are to reach it: listens = ["{port}"] of {who} in the job',
    )


def explain_exceeded_total_time(stage: StagePlan) -> Cause:
    return Cause(
        kind="total",
        what=f"stage {stage.name} ran longer than {exact_duration_text(stage.total_s)} and was stopped",
        where=get_stage_log_path(stage),
        next_step=f"if that was no hang, raise limits.total_s of stage {stage.name}",
    )


def explain_out_of_memory(cause: Cause, limit_bytes: int | None) -> Cause:
    limit = f"container limit {decimal_size_text(limit_bytes)}" if limit_bytes else "no container limit, host memory"
    return Cause(
        kind="oom",
        what=f"out of memory: {limit}; then {cause.what}",
        where=cause.where,
        next_step="give the container more memory, or use a smaller batch or model",
    )


def explain_supervisor_bug(error: BaseException, traceback_file: str) -> Cause:
    return Cause(kind="bug", what=f"error in rlbox: {type(error).__name__}: {error}", where=traceback_file)


def _in_brackets(reason: str) -> str:
    return f" ({reason})" if reason else ""
