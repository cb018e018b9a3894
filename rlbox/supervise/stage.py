"""Run one stage: its needs, its services, its command under watch, the end of all processes, its gate."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from rlbox.amounts import utc_now
from rlbox.diagnose.cause import Cause, describe_exit, get_service_or_stage_log_path, make_port_conflict_cause
from rlbox.doctor.ray_state import read_ray_auth_headers_or_empty
from rlbox.gate.files import FilesSnapshot, check_file_rule
from rlbox.gate.http_probe import wait_for_expected_response_or_problem
from rlbox.hang.nccl import make_ras_address_env_unless_set
from rlbox.i18n import _, join
from rlbox.job.names import STAGE_LOG
from rlbox.job.plan import ServicePlan, StagePlan
from rlbox.logs.pump import STAGE_LOG_FILE
from rlbox.supervise import causes
from rlbox.supervise.evidence import MachineSnapshot, StageFailure, take_snapshot
from rlbox.supervise.ports import PortAuditor, PublishedPortRelay
from rlbox.supervise.ray_jobs import SUCCEEDED, SubmittedRayJob, find_driver_log_path, write_secrets_and_get_exec_prefix
from rlbox.supervise.services import ActivityExtendedStartLimit, RunningService
from rlbox.supervise.stage_context import RetainedService, StageAborted, StageContext
from rlbox.supervise.stage_watch import TOLD_TO_STOP, StageWatch
from rlbox.system.limits import probe_cgroup_memory
from rlbox.system.ports import describe_port_holder_unless_free
from rlbox.system.run_processes import ChildProcess
from rlbox.system.safe_files import make_directories_replacing_non_directories, remove_file
from rlbox.values import Command


def stop_retained_services(context: StageContext) -> None:
    for name, kept in context.retained.items():
        context.processes.stop(kept.service.child)
        if kept.output_fd is not None:
            os.close(kept.output_fd)
        context.journal.update_service_and_log_state_change(
            kept.stage, name, state="stopped", exit_code=kept.service.child.poll()
        )
    context.retained.clear()


class _StageServices:
    def __init__(self, context: StageContext, stage: StagePlan, watch: StageWatch) -> None:
        self._context = context
        self._stage = stage
        self._watch = watch
        self._gate = watch.gate
        self._folder = context.run_dir / stage.directory

    def require_free_ports(self) -> None:
        for service in self._stage.services:
            for name, number in service.ports.items():
                rule = self._gate.outcomes.ports[service.name, name]
                holder = "" if service.name in self._context.retained else describe_port_holder_unless_free(number)
                self._gate.set_broken_if_problem_else_held(rule, f"taken by {holder}" if holder else "", "free")
                if holder:
                    raise StageAborted(make_port_conflict_cause(name, number, holder))

    def start_or_take_over_and_wait_until_ready(self, plan: ServicePlan) -> None:
        kept = self._context.retained.pop(plan.name, None)
        service = self._take_over(kept) if kept else self._begin(plan)
        self._watch.services.append(service)
        self._watch.record_service(service, state="starting", started_at=utc_now())
        rule = self._gate.outcomes.services[plan.name]
        limit = ActivityExtendedStartLimit(
            plan.start_s, lambda: self._context.processes.list_tree_and_session_pids(service.child)
        )
        while not service.has_been_ready:
            self._watch.poll_and_raise_on_failure()
            if limit.poll_exceeded_without_progress() and not service.has_been_ready:
                self._gate.set_broken(rule, service.readiness_problem)
                cause = causes.explain_slow_service_start(self._stage, plan, service.readiness_problem, limit.elapsed_s)
                raise StageAborted(
                    self._watch.hang.write_timeout_evidence(cause, plan.start_s, f"start of {plan.name}")
                )
        self._watch.forget_fatals_so_far(plan.name)
        self._gate.set_held_unless_broken(rule, "ready")
        self._watch.record_service(service, state="ready", ready_at=utc_now())

    def _begin(self, plan: ServicePlan) -> RunningService:
        ray = self._stage.ray is not None and self._stage.ray.service == plan.name
        # a job's driver and workers have the head's environment; Ray would write what `runtime_env` holds into its logs
        given = self._context.grants.make_environment((*plan.secrets, *(self._stage.secrets if ray else ())))
        command = Command(argv=plan.argv, env={**self._context.plan.env, **plan.env, **given}, cwd=str(self._folder))
        headers = read_ray_auth_headers_or_empty({**os.environ, **command.env}) if ray else {}
        with self._watch.pump.open_pipe(plan.name, self._folder / plan.log) as output:
            return self._context.start_or_abort_stage(
                self._stage,
                plan.name,
                plan.argv,
                lambda: RunningService(plan, self._context.processes, command, output, self._stage.name, headers),
            )

    def _take_over(self, kept: RetainedService) -> RunningService:
        service = kept.service
        self._watch.pump.attach_pipe(service.plan.name, self._folder / service.plan.log, kept.output_fd)
        if (code := service.child.poll()) is not None:
            self._gate.set_broken(self._gate.outcomes.services[service.plan.name], describe_exit(code))
            self._watch.record_service(service, state="ended", exit_code=code)
            when = f"between stages {kept.stage} and {self._stage.name}"
            raise StageAborted(causes.explain_service_exit(self._stage, service.plan, code, when))
        service.restart_readiness_probe()
        return service

    def services_to_retain(self) -> list[RunningService]:
        stages = self._context.plan.stages
        following = stages[stages.index(self._stage) + 1 :][:1]
        wanted = [plan for stage in following for plan in stage.services if plan.keep]
        return [s for s in self._watch.services if s.plan in wanted and s.child.poll() is None]

    def stop_all_except(self, keep: Sequence[RunningService]) -> None:
        for service in reversed([service for service in self._watch.services if service not in keep]):
            self._context.processes.stop(service.child)
            self._record_stopped(service)

    def retain_and_record_others_stopped(self, keep: Sequence[RunningService]) -> None:
        for service in self._watch.services:
            if service in keep:
                output = self._watch.pump.detach_pipe_or_none_if_closed(service.plan.name)
                kept = RetainedService(service=service, stage=self._stage.name, output_fd=output)
                self._context.retained[service.plan.name] = kept
                self._watch.record_service(service, state="kept")
            else:
                self._record_stopped(service)

    def _record_stopped(self, service: RunningService) -> None:
        states = next(s for s in self._context.journal.state.stages if s.name == self._stage.name).services
        if next(s for s in states if s.name == service.plan.name).exit_code is None:
            self._watch.record_service(service, state="stopped", exit_code=service.child.poll())


MAIN = "main"
_SETTLE_S = 2.0
"""How long after a failed command a service may still die and be named as what failed first."""


def run_stage(context: StageContext, stage: StagePlan) -> StageFailure | None:
    return _StageRun(context, stage).run()


class _StageRun:
    def __init__(self, context: StageContext, stage: StagePlan) -> None:
        self._context = context
        self._stage = stage
        self._folder = context.run_dir / stage.directory
        self._watch = StageWatch(context, stage)
        self._services = _StageServices(context, stage, self._watch)
        self._published = PublishedPortRelay(context.plan.published)
        self._audit = PortAuditor(context, stage, self._watch, self._published.inodes)
        self._gate = self._watch.gate
        self._due = [file for file in stage.files if file.newer or stage.attempt > 1]
        self._before: FilesSnapshot | None = None
        self._secrets = self._folder / "secrets.env"

    def run(self) -> StageFailure | None:
        started_at, kills = utc_now(), probe_cgroup_memory().kills
        self._watch.record_stage_and_gate(state="starting", started_at=started_at)
        cause, snapshot = self._attempt(self._run), None
        if cause and cause.kind not in ("interrupted", "need"):
            cause = self._lost_node(self._lost_need(cause))
        if cause and cause.kind != "interrupted":
            cause, snapshot = self._context.refine_cause_by_memory_and_disk(cause, kills), self._look_around()
        stopped = self._attempt(lambda: self._stop(self._services.services_to_retain() if cause is None else []))
        cause = cause or stopped or self._attempt(self._judge)
        if cause:
            stop_retained_services(self._context)
        self._watch.record_stage_and_gate()
        if cause is None:
            return None
        journal = self._context.journal
        return StageFailure(
            run_dir=self._context.run_dir,
            plan=self._context.plan,
            stage=self._stage,
            state=next(s for s in journal.state.stages if s.name == self._stage.name),
            cause=self._context.refine_cause_by_memory_and_disk(cause, kills),
            snapshot=snapshot or (self._look_around() if cause.kind != "interrupted" else None),
            started_at=started_at,
            ended_at=utc_now(),
            masks=journal.masks,
            masked_secret_env=self._context.grants.make_masked_environment(self._stage.secrets),
            fatals={
                get_service_or_stage_log_path(self._stage, name): position
                for name, position in self._watch.first_fatals_by_log.items()
            },
        )

    def _look_around(self) -> MachineSnapshot:
        members = self._context.processes.list_living_members()
        return take_snapshot(self._context.plan, self._stage, self._context.run_dir, members)

    def _attempt(self, step: Callable[[], None]) -> Cause | None:
        try:
            step()
        except StageAborted as stopped:
            return stopped.cause
        except OSError as error:
            return self._context.explain_disk_error(error)
        return None

    def _run(self) -> None:
        self._context.raise_if_stopped_or_unrecordable()
        make_directories_replacing_non_directories(self._context.run_dir, self._stage.directory)
        self._check_needs()
        if self._due:
            self._before = FilesSnapshot([file.path for file in self._due])
        self._services.require_free_ports()
        for service in self._stage.services:
            self._services.start_or_take_over_and_wait_until_ready(service)
            self._published.start_relaying_published_ports(service)
        self._audit.raise_on_undeclared_listener()
        self._run_main()

    def _check_needs(self) -> None:
        for need, rule in zip(self._stage.needs, self._gate.outcomes.needs, strict=True):
            fact = check_file_rule(need, self._context.raise_if_stopped_or_unrecordable)
            self._gate.set_broken_if_problem_else_held(rule, fact.problem, f"{fact.total_bytes} bytes")
            if fact.problem:
                raise StageAborted(causes.explain_unusable_needed_file(self._stage, need, fact))

    def _lost_need(self, cause: Cause) -> Cause:
        lost = self._attempt(self._check_needs)
        if lost is None or lost.kind != "need":
            return cause
        return replace(lost, what=join("", (lost.what, _("; then "), cause.what)))

    def _lost_node(self, cause: Cause) -> Cause:
        """Return `cause`, or the node of the run's cluster that is gone, of which it followed."""
        if cause.kind == "node":
            return cause
        interrupt = self._context.interrupt
        return (
            self._context.nodes.wait_for_lost_node_cause(self._stage, cause.what, lambda: bool(interrupt.name)) or cause
        )

    def _run_main(self) -> None:
        self._context.raise_if_stopped_or_unrecordable()
        main = self._watch.main = self._context.start_or_abort_stage(
            self._stage, MAIN, self._stage.argv, self._start_main
        )
        self._watch.start_rule_timers_and_liveness()
        self._watch.record_stage_and_gate(state="running")
        while (code := main.poll()) is None:
            self._watch.poll_and_raise_on_failure()
            self._watch.write_evidence_and_raise_on_unresponsive()
            self._watch.write_evidence_and_raise_on_hang()
            self._audit.raise_on_undeclared_listener_if_due()
        self._end_main(code)

    def _start_main(self) -> ChildProcess | SubmittedRayJob:
        stage = self._stage
        plan = self._context.plan
        environment = {**make_ras_address_env_unless_set(plan.run_id), **plan.env, **stage.env}
        given = self._context.grants.make_environment(stage.secrets)
        if stage.ray:
            marks = {"PYTHONUNBUFFERED": "1", **self._context.processes.make_env_marks(stage.name)}
            self._watch.pump.start_copying_growing_file(
                STAGE_LOG, find_driver_log_path(stage.ray), self._folder / STAGE_LOG_FILE
            )
            # a head of the run's own was started with the secrets
            before = "" if stage.ray.service else write_secrets_and_get_exec_prefix(self._secrets, given)
            return SubmittedRayJob(stage.ray, stage.argv, {**environment, **marks}, before)
        command = Command(argv=stage.argv, env={**environment, **given}, cwd=str(self._folder))
        with self._watch.pump.open_pipe(STAGE_LOG, self._folder / STAGE_LOG_FILE) as output:
            return self._context.processes.start(command, output, stage=stage.name, part=MAIN)

    def _end_main(self, code: int) -> None:
        self._watch.read_all_outputs_and_decide_rules()
        self._watch.record_new_gate_events_and_fatals()
        self._watch.raise_on_log_write_error()
        good = code in self._stage.exit_codes
        job, ended = self._watch.main, describe_exit(code)
        if isinstance(job, SubmittedRayJob) and job.last_polled_info.exit_code is None:
            ended = f"{job.last_polled_info.status}, Ray tells no code"
        self._gate.set_broken_if_problem_else_held(self._gate.outcomes.exit, "" if good else ended, ended)
        job_cause = self._job_cause()
        self._watch.record_stage_and_gate(exit_code=code)
        failed = bool(job_cause or not good)
        self._watch.record_and_raise_on_dead_service(TOLD_TO_STOP if failed else ())
        self._watch.record_gate_and_raise_on_broken_rule()
        if failed:
            self._watch.wait_and_raise_if_service_dies(_SETTLE_S)
            raise StageAborted(job_cause or causes.explain_wrong_exit_code(self._stage, code))
        self._audit.raise_on_undeclared_listener()
        self._probe_work()

    def _probe_work(self) -> None:
        for probe, rule in zip(self._stage.probes, self._gate.outcomes.probes, strict=True):
            problem = wait_for_expected_response_or_problem(probe, self._watch.poll_and_raise_on_failure)
            self._gate.set_broken_if_problem_else_held(rule, problem, "as told")
            if problem:
                raise StageAborted(causes.explain_failed_probe(self._stage, probe, problem))

    def _job_cause(self) -> Cause | None:
        job, ray, rule = self._watch.main, self._stage.ray, self._gate.outcomes.ray
        if not isinstance(job, SubmittedRayJob) or not ray or not rule:
            return None
        info = job.last_polled_info
        succeeded = info.status == SUCCEEDED
        self._gate.set_broken_if_problem_else_held(rule, "" if succeeded else info.status, info.status)
        self._watch.record_stage_and_gate(ray_status=info.status)
        return None if succeeded else causes.explain_failed_ray_job(self._stage, ray, info)

    def _stop(self, keep: Sequence[RunningService]) -> None:
        """End the command, then the services in reverse; all at once when the user is waiting."""
        self._gate.ignore_failures_while_stopping()
        self._watch.pump.disable_writer_backpressure()
        self._published.close()
        processes, main = self._context.processes, self._watch.main
        for service in self._watch.services:
            service.request_probe_stop()
        if not self._context.interrupt.name:
            if isinstance(main, SubmittedRayJob):
                main.stop()
                remove_file(self._secrets)
            elif main:
                processes.stop(main)
            self._services.stop_all_except(keep)
        left = processes.stop_all_and_list_survivors([service.child for service in keep])
        if left:
            self._context.journal.record_event(self._stage.name, "left-running", pids=[process.pid for process in left])
        self._services.retain_and_record_others_stopped(keep)
        if isinstance(main, ChildProcess):
            self._watch.record_stage_and_gate(exit_code=main.poll())
        self._watch.read_rest_and_close_logs()
        self._watch.raise_on_log_write_error()

    def _judge(self) -> None:
        missing = self._gate.list_waiting_required_lines()
        self._gate.decide_waiting_rules_except_caller_decided()
        self._watch.record_gate_and_raise_on_broken_rule()
        found = [
            causes.explain_line_missing_after_exit_0(self._stage, line, self._gate.last_nonblank_line(line.rule.log))
            for line in missing
        ]
        for file, rule in zip(self._stage.files, self._gate.outcomes.files, strict=True):
            before = self._before if file in self._due else None
            fact = check_file_rule(file, self._context.raise_if_stopped_or_unrecordable, earlier=before)
            self._gate.set_broken_if_problem_else_held(rule, fact.problem, "complete")
            if fact.problem:
                found.append(causes.explain_unusable_output_file(self._stage, file, fact))
        if found:
            raise StageAborted(found[0])
