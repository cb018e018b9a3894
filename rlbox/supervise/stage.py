"""Carry out one stage: what it needs, its services, its command under watch, the end of all, its gate."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from rlbox.causes.cause import (
    Cause,
    ended,
    failed_exit,
    failed_ray,
    log_path,
    lost_service,
    missing_file,
    missing_line,
    needed_file,
    never_ready,
    taken_port,
)
from rlbox.causes.first_fatal import FatalSpot
from rlbox.doctor.act.ray_facts import auth_headers
from rlbox.evidence.act.snapshot import Snapshot, probe_snapshot
from rlbox.gate.act.file_facts import probe_file
from rlbox.gate.act.http_probe import await_answer
from rlbox.gate.causes import failed_probe, wrong_exit
from rlbox.gate.gate import RAY_RULE, STAGE_LOG, exit_text, port_text
from rlbox.gate.rules import file_text, probe_text
from rlbox.job.plan import ServicePlan, StagePlan
from rlbox.logs.act.watch import STAGE_LOG_FILE
from rlbox.machine.act.clock import utc_now
from rlbox.machine.act.memory import probe_memory
from rlbox.machine.act.ports import probe_port
from rlbox.machine.act.processes import RUN_MARK, STAGE_MARK, Child
from rlbox.supervise.bench import Bench, KeptService, StageStopped
from rlbox.supervise.ray_jobs import SUCCEEDED, RayJob, driver_log
from rlbox.supervise.services import RunningService
from rlbox.supervise.stage_watch import TOLD_TO_STOP, StageWatch
from rlbox.values import Command

MAIN = "main"
_SETTLE_S = 2.0
"""How long after a failed command a service may still die and be named as what failed first."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class StageEnd:
    """How a stage ended; `cause` None: it passed. `snapshot` is there when it failed by itself.

    `fatals` has the first fatal line of each log that holds one, by the log's path below the run directory.
    """

    stage: StagePlan
    cause: Cause | None
    snapshot: Snapshot | None
    started_at: str
    ended_at: str
    fatals: Mapping[str, FatalSpot] = field(default_factory=dict)


def carry_out_stage(bench: Bench, stage: StagePlan) -> StageEnd:
    """Run a stage to its end, passed or not; nothing that it started is left when this returns."""
    return _StageRun(bench, stage).carry_out()


def end_kept(bench: Bench) -> None:
    """End the services that were kept for a stage that will not come."""
    for name, kept in bench.kept.items():
        bench.processes.stop(kept.service.child)
        if kept.output >= 0:
            os.close(kept.output)
        bench.journal.change_service(kept.stage, name, state="stopped", exit_code=kept.service.child.poll())
    bench.kept.clear()


class _StageRun:
    def __init__(self, bench: Bench, stage: StagePlan) -> None:
        self._bench = bench
        self._stage = stage
        self._folder = bench.run_dir / stage.directory
        self._watch = StageWatch(bench, stage)
        self._gate = self._watch.gate
        self._begun_ns = time.time_ns()

    def carry_out(self) -> StageEnd:
        started_at, kills = utc_now(), probe_memory().kills
        self._watch.record(state="starting", started_at=started_at)
        cause, snapshot = self._attempt(self._run), None
        if cause and cause.kind not in ("interrupted", "need"):
            cause = self._lost_need(cause)
        if cause and cause.kind != "interrupted":
            cause, snapshot = self._bench.explain(cause, kills), self._look_around()
        stopped = self._attempt(lambda: self._stop(self._going_on() if cause is None else []))
        cause = cause or stopped or self._attempt(self._judge)
        if cause:
            end_kept(self._bench)
        self._watch.record()
        return StageEnd(
            stage=self._stage,
            cause=self._bench.explain(cause, kills) if cause else None,
            snapshot=snapshot or (self._look_around() if cause and cause.kind != "interrupted" else None),
            started_at=started_at,
            ended_at=utc_now(),
            fatals={log_path(self._stage, name): spot for name, spot in self._watch.fatals.items()},
        )

    def _look_around(self) -> Snapshot:
        members = self._bench.processes.members()
        return probe_snapshot(self._bench.plan, self._stage, self._bench.run_dir, members)

    def _attempt(self, step: Callable[[], None]) -> Cause | None:
        try:
            step()
        except StageStopped as stopped:
            return stopped.cause
        except OSError as error:
            return self._bench.disk_cause(error)
        return None

    def _run(self) -> None:
        self._bench.check_going()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._check_needs()
        self._check_ports()
        for service in self._stage.services:
            self._start_service(service)
        self._run_main()

    def _check_needs(self) -> None:
        for need in self._stage.needs:
            fact = probe_file(need, self._bench.check_going)
            if fact.problem:
                self._gate.refuse("need", need.path, fact.problem)
                raise StageStopped(needed_file(self._stage, need, fact))
            self._gate.hold("need", need.path, f"{fact.bytes} bytes")

    def _lost_need(self, cause: Cause) -> Cause:
        """Return `cause`, or the needed file that was changed since it was checked, which then came first."""
        lost = self._attempt(self._check_needs)
        if lost is None or lost.kind != "need":
            return cause
        return replace(lost, what=f"{lost.what}; then {cause.what}")

    def _check_ports(self) -> None:
        for service in self._stage.services:
            for name, number in service.ports.items():
                holder = "" if service.name in self._bench.kept else probe_port(number)
                if holder:
                    self._gate.refuse("port", port_text(name, number), f"taken by {holder}")
                    raise StageStopped(taken_port(name, number, holder))
                self._gate.hold("port", port_text(name, number), "free")

    def _start_service(self, plan: ServicePlan) -> None:
        kept = self._bench.kept.pop(plan.name, None)
        service = self._take_over(kept) if kept else self._begin_service(plan)
        self._watch.services.append(service)
        self._watch.pump.wake_at_end(service.child.pid)
        self._watch.record_service(service, state="starting", started_at=utc_now())
        while not service.ready:
            self._watch.look()
            if service.late and not service.ready:
                self._gate.refuse("service", plan.name, service.answer)
                cause = never_ready(self._stage, plan, service.answer)
                raise StageStopped(self._watch.hang.explain(cause, plan.start_s, f"start of {plan.name}"))
        self._watch.forgive(plan.name)
        self._gate.hold("service", plan.name, "ready")
        self._watch.record_service(service, state="ready", ready_at=utc_now())

    def _begin_service(self, plan: ServicePlan) -> RunningService:
        command = Command(argv=plan.argv, env={**self._bench.plan.env, **plan.env}, cwd=str(self._folder))
        ray = self._stage.ray is not None and self._stage.ray.service == plan.name
        headers = auth_headers({**os.environ, **command.env}) if ray else {}
        with self._pipe(plan.name, plan.log) as output:
            return self._started(
                plan.name,
                plan.argv,
                lambda: RunningService(plan, self._bench.processes, command, output, self._stage.name, headers),
            )

    def _take_over(self, kept: KeptService) -> RunningService:
        """Go on with a service of the stage before, which must prove anew that it does its work."""
        service = kept.service
        self._watch.pump.adopt(service.plan.name, self._folder / service.plan.log, kept.output)
        if (code := service.child.poll()) is not None:
            self._gate.refuse("service", service.plan.name, ended(code))
            self._watch.record_service(service, state="ended", exit_code=code)
            raise StageStopped(lost_service(self._stage, service.plan, code, kept.stage))
        service.ask_again()
        return service

    def _run_main(self) -> None:
        self._bench.check_going()
        main = self._watch.main = self._started(MAIN, self._stage.argv, self._start_main)
        self._watch.begin_command()
        self._watch.record(state="running")
        while (code := main.poll()) is None:
            self._watch.look()
            self._watch.check_answers()
            self._watch.check_silence()
        self._end_main(code)

    def _start_main(self) -> Child | RayJob:
        stage = self._stage
        environment = {**self._bench.plan.env, **stage.env}
        if stage.ray:
            marks = {"PYTHONUNBUFFERED": "1", RUN_MARK: self._bench.plan.run_id, STAGE_MARK: stage.name}
            self._watch.pump.follow(STAGE_LOG, driver_log(stage.ray), self._folder / STAGE_LOG_FILE)
            return RayJob(stage.ray, stage.argv, {**environment, **marks})
        command = Command(argv=stage.argv, env=environment, cwd=str(self._folder))
        with self._pipe(STAGE_LOG, STAGE_LOG_FILE) as output:
            child = self._bench.processes.start(command, output, stage=stage.name, part=MAIN)
        self._watch.pump.wake_at_end(child.pid)
        return child

    def _pipe(self, name: str, file: str) -> AbstractContextManager[int]:
        return self._watch.pump.pipe(name, self._folder / file)

    def _started(self, part: str, argv: tuple[str, ...], start: Callable[[], T]) -> T:
        try:
            return start()
        except OSError as error:
            raise StageStopped(self._bench.start_cause(self._stage, part, argv[0], error)) from error

    def _end_main(self, code: int) -> None:
        self._watch.end_command()
        self._watch.tell()
        self._watch.check_disk()
        good = code in self._stage.exit_codes
        (self._gate.hold if good else self._gate.refuse)("exit", exit_text(self._stage), self._ended(code))
        job_cause = self._job_cause()
        self._watch.record(exit_code=code)
        failed = bool(job_cause or not good)
        self._watch.check_services(TOLD_TO_STOP if failed else ())
        self._watch.check_forbidden()
        if failed:
            self._watch.settle(_SETTLE_S)
            usual = self._stage.exit_codes == (0,)
            raise StageStopped(job_cause or (failed_exit if usual else wrong_exit)(self._stage, code))
        self._probe_work()

    def _ended(self, code: int) -> str:
        job = self._watch.main
        if isinstance(job, RayJob) and job.facts.exit_code is None:
            return f"{job.facts.status}, Ray tells no code"
        return ended(code)

    def _probe_work(self) -> None:
        """Send the requests that must be answered while the services still run."""
        for probe in self._stage.probes:
            problem = await_answer(probe, self._watch.look)
            (self._gate.refuse if problem else self._gate.hold)("probe", probe_text(probe), problem or "as told")
            if problem:
                raise StageStopped(failed_probe(self._stage, probe, problem))

    def _job_cause(self) -> Cause | None:
        job, ray = self._watch.main, self._stage.ray
        if not isinstance(job, RayJob) or not ray:
            return None
        facts = job.facts
        succeeded = facts.status == SUCCEEDED
        (self._gate.hold if succeeded else self._gate.refuse)("ray", RAY_RULE, facts.status)
        self._watch.record(ray_status=facts.status)
        return None if succeeded else failed_ray(self._stage, ray, facts.status, facts.exit_code, facts.message)

    def _going_on(self) -> list[RunningService]:
        """Return the services that the next stage names too and that are to be kept for it."""
        stages = self._bench.plan.stages
        following = stages[stages.index(self._stage) + 1 :][:1]
        wanted = [plan for stage in following for plan in stage.services if plan.keep]
        return [s for s in self._watch.services if s.plan in wanted and s.child.poll() is None]

    def _stop(self, keep: Sequence[RunningService]) -> None:
        """End the command, then the services in reverse but those to `keep`; all at once when the user is waiting."""
        self._gate.begin_stop()
        self._watch.pump.let_flow()
        processes, main = self._bench.processes, self._watch.main
        for service in self._watch.services:
            service.close()
        if not self._bench.interrupt.name:
            if isinstance(main, RayJob):
                main.stop()
            elif main:
                processes.stop(main)
            for service in reversed([service for service in self._watch.services if service not in keep]):
                processes.stop(service.child)
                self._record_stopped(service)
        left = processes.stop_all([service.child for service in keep])
        if left:
            self._bench.journal.event(self._stage.name, "left-running", pids=[process.pid for process in left])
        self._close_logs(keep)

    def _close_logs(self, keep: Sequence[RunningService]) -> None:
        main = self._watch.main
        for service in self._watch.services:
            if service in keep:
                output = self._watch.pump.release(service.plan.name)
                kept = KeptService(service=service, stage=self._stage.name, output=output)
                self._bench.kept[service.plan.name] = kept
                self._watch.record_service(service, state="kept")
            else:
                self._record_stopped(service)
        if isinstance(main, Child):
            self._watch.record(exit_code=main.poll())
        self._watch.close_logs()
        self._watch.check_disk()

    def _record_stopped(self, service: RunningService) -> None:
        states = next(s for s in self._bench.journal.state.stages if s.name == self._stage.name).services
        if next(s for s in states if s.name == service.plan.name).exit_code is None:
            self._watch.record_service(service, state="stopped", exit_code=service.child.poll())

    def _judge(self) -> None:
        """Look at what only the end of a command that ended well shows: required lines, metrics and files."""
        missing = self._gate.missing_lines()
        self._gate.end()
        self._watch.check_forbidden()
        problems = []
        for file in self._stage.files:
            since_ns = self._begun_ns if file.newer or self._stage.attempt > 1 else 0
            fact = probe_file(file, self._bench.check_going, since_ns=since_ns)
            seen = fact.problem or "complete"
            (self._gate.refuse if fact.problem else self._gate.hold)("file", file_text(file), seen)
            if fact.problem:
                problems.append(missing_file(self._stage, file, fact))
        lines = [missing_line(self._stage, rule, n, self._gate.last_line(rule.log)) for rule, n in missing]
        for cause in (*lines, *problems):
            raise StageStopped(cause)
