"""Carry out one stage: what it needs, its services, its command under watch, the end of all, its gate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from rlbox.act.bench import Bench, StageStopped
from rlbox.act.file_facts import probe_file
from rlbox.act.log_watch import STAGE_LOG_FILE
from rlbox.act.memory import probe_memory
from rlbox.act.ports import probe_port
from rlbox.act.processes import RUN_MARK, STAGE_MARK, Child
from rlbox.act.ray_jobs import SUCCEEDED, RayJob
from rlbox.act.run_state import utc_now
from rlbox.act.services import RunningService
from rlbox.act.snapshot import Snapshot, probe_snapshot
from rlbox.act.stage_watch import TOLD_TO_STOP, StageWatch
from rlbox.plan.causes import (
    Cause,
    ended,
    failed_exit,
    failed_ray,
    missing_file,
    missing_line,
    needed_file,
    never_ready,
    taken_port,
)
from rlbox.plan.gates import EXIT_RULE, RAY_RULE, port_text
from rlbox.plan.run import ServicePlan, StagePlan
from rlbox.values import Command

MAIN = "main"
_SETTLE_S = 2.0
"""How long after a failed command a service may still die and be named as what failed first."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class StageEnd:
    """How a stage ended; `cause` None: it passed. `snapshot` is there when it failed by itself."""

    stage: StagePlan
    cause: Cause | None
    snapshot: Snapshot | None
    started_at: str
    ended_at: str


def carry_out_stage(bench: Bench, stage: StagePlan) -> StageEnd:
    """Run a stage to its end, passed or not; nothing that it started is left when this returns."""
    return _StageRun(bench, stage).carry_out()


class _StageRun:
    def __init__(self, bench: Bench, stage: StagePlan) -> None:
        self._bench = bench
        self._stage = stage
        self._folder = bench.run_dir / stage.directory
        self._watch = StageWatch(bench, stage)
        self._gate = self._watch.gate

    def carry_out(self) -> StageEnd:
        started_at, kills = utc_now(), probe_memory().kills
        self._watch.record(state="starting", started_at=started_at)
        cause, snapshot = self._attempt(self._run), None
        if cause and cause.kind not in ("interrupted", "need"):
            cause = self._lost_need(cause)
        if cause and cause.kind != "interrupted":
            cause, snapshot = self._bench.explain(cause, kills), self._look_around()
        stopped = self._attempt(self._stop)
        cause = cause or stopped or self._attempt(self._judge)
        self._watch.record()
        return StageEnd(
            stage=self._stage,
            cause=self._bench.explain(cause, kills) if cause else None,
            snapshot=snapshot or (self._look_around() if cause and cause.kind != "interrupted" else None),
            started_at=started_at,
            ended_at=utc_now(),
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
                holder = probe_port(number)
                if holder:
                    self._gate.refuse("port", port_text(name, number), f"taken by {holder}")
                    raise StageStopped(taken_port(name, number, holder))
                self._gate.hold("port", port_text(name, number), "free")

    def _start_service(self, plan: ServicePlan) -> None:
        command = Command(argv=plan.argv, env={**self._bench.plan.env, **plan.env}, cwd=str(self._folder))
        log = self._folder / plan.log
        service = self._started(
            plan.name, plan.argv, lambda: RunningService(plan, self._bench.processes, command, log, self._stage.name)
        )
        self._watch.services.append(service)
        self._watch.record_service(service, state="starting", started_at=utc_now())
        while not service.ready:
            self._watch.look()
            if service.late and not service.ready:
                self._gate.refuse("service", plan.name, service.answer)
                raise StageStopped(never_ready(self._stage, plan, service.answer))
        self._gate.hold("service", plan.name, "ready")
        self._watch.record_service(service, state="ready", ready_at=utc_now())

    def _run_main(self) -> None:
        self._bench.check_going()
        main = self._watch.main = self._started(MAIN, self._stage.argv, self._start_main)
        self._watch.logs.listen()
        self._watch.record(state="running")
        while (code := main.poll()) is None:
            self._watch.look()
            self._watch.check_silence()
        self._end_main(code)

    def _start_main(self) -> Child | RayJob:
        stage, log = self._stage, self._folder / STAGE_LOG_FILE
        environment = {**self._bench.plan.env, **stage.env}
        if stage.ray:
            marks = {"PYTHONUNBUFFERED": "1", RUN_MARK: self._bench.plan.run_id, STAGE_MARK: stage.name}
            return RayJob(stage.ray, stage.argv, {**environment, **marks}, log)
        command = Command(argv=stage.argv, env=environment, cwd=str(self._folder))
        return self._bench.processes.start(command, log, stage=stage.name, part=MAIN)

    def _started(self, part: str, argv: tuple[str, ...], start: Callable[[], T]) -> T:
        try:
            return start()
        except OSError as error:
            raise StageStopped(self._bench.start_cause(self._stage, part, argv[0], error)) from error

    def _end_main(self, code: int) -> None:
        self._watch.follow()
        self._watch.logs.drain()
        (self._gate.refuse if code else self._gate.hold)("exit", EXIT_RULE, ended(code))
        job_cause = self._job_cause()
        self._watch.record(exit_code=code)
        failed = bool(code or job_cause)
        self._watch.check_services(TOLD_TO_STOP if failed else ())
        self._watch.check_forbidden()
        if failed:
            self._watch.settle(_SETTLE_S)
            raise StageStopped(job_cause or failed_exit(self._stage, code))

    def _job_cause(self) -> Cause | None:
        job, ray = self._watch.main, self._stage.ray
        if not isinstance(job, RayJob) or not ray:
            return None
        facts = job.facts
        succeeded = facts.status == SUCCEEDED
        (self._gate.hold if succeeded else self._gate.refuse)("ray", RAY_RULE, facts.status)
        self._watch.record(ray_status=facts.status)
        return None if succeeded else failed_ray(self._stage, ray, facts.status, facts.exit_code, facts.message)

    def _stop(self) -> None:
        """End the command, then the services in reverse; all at once when the user is waiting."""
        self._gate.begin_stop()
        processes, main = self._bench.processes, self._watch.main
        for service in self._watch.services:
            service.close()
        if not self._bench.interrupt.name:
            if isinstance(main, RayJob):
                main.stop()
            elif main:
                processes.stop(main)
            for service in reversed(self._watch.services):
                processes.stop(service.child)
                self._record_stopped(service)
        left = processes.stop_all()
        if left:
            self._bench.journal.event(self._stage.name, "left-running", pids=[process.pid for process in left])
        self._close_logs()

    def _close_logs(self) -> None:
        main = self._watch.main
        for service in self._watch.services:
            self._record_stopped(service)
        self._watch.follow()
        if isinstance(main, RayJob):
            main.close()
        elif main:
            self._watch.record(exit_code=main.poll())
        self._watch.logs.close()

    def _record_stopped(self, service: RunningService) -> None:
        states = next(s for s in self._bench.journal.state.stages if s.name == self._stage.name).services
        if next(s for s in states if s.name == service.plan.name).exit_code is None:
            self._watch.record_service(service, state="stopped", exit_code=service.child.poll())

    def _judge(self) -> None:
        """Look at what only the end of a command that exited 0 shows: required lines and files."""
        missing = self._gate.missing_lines()
        self._gate.end()
        problems = []
        for file in self._stage.files:
            fact = probe_file(file, self._bench.check_going)
            (self._gate.refuse if fact.problem else self._gate.hold)("file", file.path, fact.problem or "complete")
            if fact.problem:
                problems.append(missing_file(self._stage, file, fact))
        lines = [missing_line(self._stage, rule, n, self._gate.last_line(rule.log)) for rule, n in missing]
        for cause in (*lines, *problems):
            raise StageStopped(cause)
