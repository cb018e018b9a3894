"""The services of one stage: started or taken over in order, and in the end stopped or kept for the next stage."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rlbox.diagnose.cause import describe_exit, make_port_conflict_cause
from rlbox.doctor.ray_state import ray_auth_headers
from rlbox.job.plan import ServicePlan, StagePlan
from rlbox.supervise.bench import RetainedService, StageContext, StageStopped
from rlbox.supervise.causes import lost_service, never_ready
from rlbox.supervise.services import RunningService
from rlbox.supervise.stage_watch import StageWatch
from rlbox.supervise.weights import weights_bytes
from rlbox.system.clock import utc_now
from rlbox.system.ports import find_port_holder
from rlbox.values import Command


def stop_retained_services(context: StageContext) -> None:
    """End the services that were kept for a stage that will not come."""
    for name, kept in context.retained.items():
        context.processes.stop(kept.service.child)
        if kept.output >= 0:
            os.close(kept.output)
        context.journal.change_service(kept.stage, name, state="stopped", exit_code=kept.service.child.poll())
    context.retained.clear()


class StageServices:
    """Starts and ends the services of a stage; those that run are `services` of its watch. Raises `StageStopped`."""

    def __init__(self, context: StageContext, stage: StagePlan, watch: StageWatch) -> None:
        self._context = context
        self._stage = stage
        self._watch = watch
        self._gate = watch.gate
        self._folder = context.run_dir / stage.directory

    def check_ports(self) -> None:
        """Stop a stage one of whose ports another process listens on."""
        for service in self._stage.services:
            for name, number in service.ports.items():
                rule = self._gate.facts.ports[service.name, name]
                holder = "" if service.name in self._context.retained else find_port_holder(number)
                if holder:
                    self._gate.refuse(rule, f"taken by {holder}")
                    raise StageStopped(make_port_conflict_cause(name, number, holder))
                self._gate.hold(rule, "free")

    def start(self, plan: ServicePlan) -> None:
        """Start a service, or take it over from the stage before, and wait until it does its work."""
        kept = self._context.retained.pop(plan.name, None)
        service = self._take_over(kept) if kept else self._begin(plan)
        self._watch.services.append(service)
        self._watch.pump.wake_at_end(service.child.pid)
        size = weights_bytes(plan.argv)
        self._watch.record_service(service, state="starting", started_at=utc_now(), weights_bytes=size)
        rule = self._gate.facts.services[plan.name]
        with self._context.starvation.track_startup(service.child, plan.start_s) as start:
            while not service.ready:
                self._watch.poll()
                if start.is_late and not service.ready:
                    self._gate.refuse(rule, service.answer)
                    cause = never_ready(self._stage, plan, service.answer, start.elapsed_s)
                    raise StageStopped(self._watch.hang.explain(cause, plan.start_s, f"start of {plan.name}"))
        self._watch.reset_fatals(plan.name)
        self._gate.hold(rule, "ready")
        self._watch.record_service(service, state="ready", ready_at=utc_now())

    def _begin(self, plan: ServicePlan) -> RunningService:
        ray = self._stage.ray is not None and self._stage.ray.service == plan.name
        # a job's driver and workers have the head's environment; Ray would write what `runtime_env` holds into its logs
        given = self._context.grants.environment((*plan.secrets, *(self._stage.secrets if ray else ())))
        command = Command(argv=plan.argv, env={**self._context.plan.env, **plan.env, **given}, cwd=str(self._folder))
        headers = ray_auth_headers({**os.environ, **command.env}) if ray else {}
        with self._watch.pump.pipe(plan.name, self._folder / plan.log) as output:
            return self._context.start_part(
                self._stage,
                plan.name,
                plan.argv,
                lambda: RunningService(
                    plan,
                    self._context.processes,
                    command,
                    output,
                    self._stage.name,
                    headers,
                    self._context.starvation.now_s,
                ),
            )

    def _take_over(self, kept: RetainedService) -> RunningService:
        """Go on with a service of the stage before, which must prove anew that it does its work."""
        service = kept.service
        self._watch.pump.adopt(service.plan.name, self._folder / service.plan.log, kept.output)
        if (code := service.child.poll()) is not None:
            self._gate.refuse(self._gate.facts.services[service.plan.name], describe_exit(code))
            self._watch.record_service(service, state="ended", exit_code=code)
            raise StageStopped(lost_service(self._stage, service.plan, code, kept.stage))
        service.restart_probe()
        return service

    def services_to_retain(self) -> list[RunningService]:
        """Return the services that the next stage names too and that are to be kept for it."""
        stages = self._context.plan.stages
        following = stages[stages.index(self._stage) + 1 :][:1]
        wanted = [plan for stage in following for plan in stage.services if plan.keep]
        return [s for s in self._watch.services if s.plan in wanted and s.child.poll() is None]

    def stop(self, keep: Sequence[RunningService]) -> None:
        """End the services but those to `keep`, in reverse, each once what came after it is gone."""
        for service in reversed([service for service in self._watch.services if service not in keep]):
            self._context.processes.stop(service.child)
            self._record_stopped(service)

    def hand_over(self, keep: Sequence[RunningService]) -> None:
        """Lay those to `keep` ready for the next stage, and record how all others, which are gone, ended."""
        for service in self._watch.services:
            if service in keep:
                output = self._watch.pump.release(service.plan.name)
                kept = RetainedService(service=service, stage=self._stage.name, output=output)
                self._context.retained[service.plan.name] = kept
                self._watch.record_service(service, state="kept")
            else:
                self._record_stopped(service)

    def _record_stopped(self, service: RunningService) -> None:
        states = next(s for s in self._context.journal.state.stages if s.name == self._stage.name).services
        if next(s for s in states if s.name == service.plan.name).exit_code is None:
            self._watch.record_service(service, state="stopped", exit_code=service.child.poll())
