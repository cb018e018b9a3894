"""Why a stage failed, in one sentence: a rule of its gate, a service, a limit, the machine."""

from __future__ import annotations

from rlbox.amounts import decimal_size_text, duration_text, exact_duration_text
from rlbox.diagnose.cause import Cause, CauseKind, describe_exit, get_service_or_stage_log_path, get_stage_log_path
from rlbox.gate.files import FileSizeOrProblem
from rlbox.gate.line_rules import ForbiddenLineMatch, RequiredLineTracker, RuleViolation
from rlbox.i18n import _, join
from rlbox.job.gate import FileRule, FinalProbe, MetricRule
from rlbox.job.plan import RayJobPlan, RayNodeAddress, RunCluster, ServicePlan, StagePlan
from rlbox.supervise.ray_jobs import RayJobInfo

_RAY_EXITED = "Job entrypoint command failed with exit code"  # says nothing that the exit code does not


def explain_violation(stage: StagePlan, violation: RuleViolation) -> Cause:
    rule, line = violation.rule, violation.line
    where = get_service_or_stage_log_path(stage, rule.log)
    if isinstance(rule, MetricRule):
        kind: CauseKind = "metric"
        what = _("stage {stage}: metric {problem}{why}; the rule is {rule}")
    else:
        kind = "within" if violation.timed_out else "require"
        what = _("stage {stage}: the rule /{rule}/{why} is broken: {problem}")
    what = what.format(stage=stage.name, problem=violation.problem, why=_in_brackets(rule.why), rule=rule.describe())
    if line:
        return Cause(kind=kind, what=what, where=f"{where}:{line.number}", line=line.text)
    return Cause(kind=kind, what=what, where=where)


def explain_forbidden_line(stage: StagePlan, forbidden: ForbiddenLineMatch) -> Cause:
    rule, line = forbidden.rule, forbidden.line
    what = _("stage {stage} was stopped: its log held the forbidden line /{pattern}/{why}")
    what = what.format(stage=stage.name, pattern=rule.pattern, why=_in_brackets(rule.why))
    where = f"{get_service_or_stage_log_path(stage, rule.log)}:{line.number}"
    return Cause(kind="forbid", what=what, where=where, line=line.text)


def explain_line_missing_after_exit_0(stage: StagePlan, missing: RequiredLineTracker, last_line: str) -> Cause:
    rule, log, count = missing.rule, get_service_or_stage_log_path(stage, missing.rule.log), missing.state.count
    often = _("only {count} times, not {due},").format(count=count, due=rule.count) if count else _("never")
    return _make_cause(
        "require",
        _("stage {stage} exited 0, but {log} {often} held a line like /{pattern}/{why}; {last}"),
        where=log,
        next_step=_("read its end: the log says how far the work came before it ended as if all were well"),
        stage=stage.name,
        log=log,
        often=often,
        pattern=rule.pattern,
        why=_in_brackets(rule.why),
        last=_("its last line was: {line}").format(line=last_line) if last_line else _("it is empty"),
    )


def explain_failed_probe(stage: StagePlan, probe: FinalProbe, problem: str) -> Cause:
    return _make_cause(
        "probe",
        _("stage {stage} ended well, but {request}{why} was not answered as told: {problem}"),
        next_step=_("send the same request by hand while the service runs, and read its log"),
        stage=stage.name,
        request=probe.describe(),
        why=_in_brackets(probe.why),
        problem=problem,
    )


def explain_unusable_needed_file(stage: StagePlan, need: FileRule, check: FileSizeOrProblem) -> Cause:
    what = _("stage {stage} needs {path}{why}: {problem}")
    what = what.format(stage=stage.name, path=need.path, why=_in_brackets(need.why), problem=check.problem)
    return Cause(kind="need", what=what, where=need.path, next_step=_("run again from the stage that writes it"))


def explain_unusable_output_file(stage: StagePlan, file: FileRule, check: FileSizeOrProblem) -> Cause:
    what = _("stage {stage} exited 0, but {path}{why}: {problem}")
    what = what.format(stage=stage.name, path=file.path, why=_in_brackets(file.why), problem=check.problem)
    return Cause(kind="file", what=what, where=file.path)


def explain_wrong_exit_code(stage: StagePlan, returncode: int) -> Cause:
    what = _("stage {stage} ended with {ended}").format(stage=stage.name, ended=describe_exit(returncode))
    if stage.exit_codes != (0,):
        what += _(", not with exit code {codes}").format(codes=join(_(" or "), stage.exit_codes))
    return Cause(kind="exit", what=what, where=get_stage_log_path(stage))


def explain_failed_fix(fix_id: str, seen: str, remedy: str, other_failed_count: int, doctor_command: str) -> Cause:
    what = _("fix {fix} does not hold in this container: {seen}").format(fix=fix_id, seen=seen)
    if other_failed_count:
        what += _(" ({count} more do not hold either)").format(count=other_failed_count)
        remedy = join("", (remedy, _(" (`rlbox {command}` tells all)").format(command=doctor_command)))
    return Cause(kind="fix", what=what, next_step=remedy)


def explain_failed_start(stage: StagePlan, service_or_main: str, program: str, reason: str) -> Cause:
    what = _("service {service} of stage {stage} cannot start {program}: {reason}")
    what = _("stage {stage} cannot start {program}: {reason}") if service_or_main == "main" else what
    values = {"service": service_or_main, "stage": stage.name, "program": program, "reason": reason}
    return Cause(kind="program", what=what.format(**values))


def explain_service_exit(stage: StagePlan, service: ServicePlan, code: int, when: str) -> Cause:
    what = _("service {service} ended with {ended} {when}")
    what = what.format(service=service.name, ended=describe_exit(code), when=when)
    return Cause(kind="service", what=what, where=get_service_or_stage_log_path(stage, service.name))


def explain_slow_service_start(stage: StagePlan, service: ServicePlan, last_problem: str, took_s: float) -> Cause:
    return _make_cause(
        "ready",
        _("service {service} was not ready after {duration} (limit {limit}): {proof}: {problem}"),
        where=get_service_or_stage_log_path(stage, service.name),
        next_step=_("read its log; if it was only slow, raise start_s of service {service}"),
        service=service.name,
        duration=duration_text(took_s),
        limit=exact_duration_text(service.start_s),
        proof=service.ready.describe(),
        problem=last_problem,
    )


def explain_unresponsive_service(stage: StagePlan, service: ServicePlan, last_problem: str) -> Cause:
    return _make_cause(
        "silence",
        _("service {service} has not answered for {duration} while stage {stage} was running: {proof}: {problem}"),
        where=get_service_or_stage_log_path(stage, service.name),
        next_step=_("if it was only busy, raise answer_s of service {service}"),
        service=service.name,
        duration=exact_duration_text(service.answer_s),
        stage=stage.name,
        proof=service.ready.describe(),
        problem=last_problem,
    )


def explain_failed_ray_job(stage: StagePlan, ray: RayJobPlan, info: RayJobInfo) -> Cause:
    what = _("Ray job {job} of stage {stage} ended {status}")
    what = what.format(job=ray.submission_id, stage=stage.name, status=info.status)
    if info.exit_code is not None:
        what += _(" (driver {ended})").format(ended=describe_exit(info.exit_code))
    first = [line[:300] for line in info.message.strip().splitlines()[:1] if not line.startswith(_RAY_EXITED)]
    return Cause(kind="ray", what=join(": ", (what, *first)), where=get_stage_log_path(stage))


def explain_lost_node(
    stage: StagePlan, node: RayNodeAddress, problem: str, cluster: RunCluster, run_id: str, consequence: str = ""
) -> Cause:
    what = _("node {node} of cluster {cluster} is gone: {problem}")
    what = what.format(node=node.name, cluster=cluster.name, problem=problem)
    next_step = _("rlbox cluster up {words} brings back what died, rlbox run --resume {run} {options} goes on")
    return Cause(
        kind="node",
        what=join(_("; then "), filter(None, (what, consequence))),
        where=get_stage_log_path(stage),
        next_step=next_step.format(words=cluster.words, run=run_id, options=cluster.options),
    )


def explain_undeclared_listener(stage: StagePlan, service_or_main: str, process: str, address: str, port: int) -> Cause:
    who = _("stage {stage}") if service_or_main in ("main", "other") else _("service {service}")
    return _make_cause(
        "listens",
        _("{process} of {who} listens on {address}, which the job does not declare"),
        next_step=_('have it listen on 127.0.0.1; if others are to reach it: listens = ["{port}"] of {who} in the job'),
        process=process,
        who=who.format(stage=stage.name, service=service_or_main),
        address=address,
        port=port,
    )


def explain_exceeded_total_time(stage: StagePlan) -> Cause:
    return _make_cause(
        "total",
        _("stage {stage} ran longer than {duration} and was stopped"),
        where=get_stage_log_path(stage),
        next_step=_("if it was not a hang, raise limits.total_s of stage {stage}"),
        stage=stage.name,
        duration=exact_duration_text(stage.total_s),
    )


def explain_out_of_memory(cause: Cause, limit_bytes: int | None) -> Cause:
    limit = _("container limit {size}") if limit_bytes else _("no container limit, host memory")
    return _make_cause(
        "oom",
        _("out of memory: {limit}; then {what}"),
        where=cause.where,
        next_step=_("give the container more memory, or use a smaller batch or model"),
        limit=limit.format(size=decimal_size_text(limit_bytes or 0)),
        what=cause.what,
    )


def explain_supervisor_bug(error: BaseException, traceback_file: str) -> Cause:
    what = _("error in rlbox: {kind}: {error}").format(kind=type(error).__name__, error=error)
    return Cause(kind="bug", what=what, where=traceback_file)


def _make_cause(kind: CauseKind, template: str, *, where: str = "", next_step: str, **values: object) -> Cause:
    return Cause(kind=kind, what=template.format(**values), where=where, next_step=next_step.format(**values))


def _in_brackets(reason: str) -> str:
    return join("", (" (", _(reason), ")")) if reason else ""
