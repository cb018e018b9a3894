"""Carry out one stage: what it needs, its services, its command under watch, the end of all, its gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rlbox.diagnose.cause import Cause, ended, log_path
from rlbox.diagnose.first_fatal import FatalSpot
from rlbox.gate.before import Before
from rlbox.gate.causes import failed_exit, failed_probe, missing_file, missing_line, needed_file, wrong_exit
from rlbox.gate.file_facts import probe_file
from rlbox.gate.http_probe import await_answer
from rlbox.job.names import STAGE_LOG
from rlbox.job.plan import StagePlan
from rlbox.logs.pump import STAGE_LOG_FILE
from rlbox.supervise.bench import Bench, StageStopped
from rlbox.supervise.causes import failed_ray
from rlbox.supervise.port_audit import PortAudit
from rlbox.supervise.published import Published
from rlbox.supervise.ray_jobs import SUCCEEDED, RunningRayJob, driver_log, handed_over
from rlbox.supervise.services import RunningService
from rlbox.supervise.snapshot import Snapshot, probe_snapshot
from rlbox.supervise.stage_services import StageServices, end_kept
from rlbox.supervise.stage_watch import TOLD_TO_STOP, StageWatch
from rlbox.system.clock import utc_now
from rlbox.system.limits import probe_cgroup_memory
from rlbox.system.processes import ChildProcess
from rlbox.system.safe_files import force_directories, remove_file
from rlbox.values import Command

MAIN = "main"
_SETTLE_S = 2.0
"""How long after a failed command a service may still die and be named as what failed first."""


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


class _StageRun:
    def __init__(self, bench: Bench, stage: StagePlan) -> None:
        self._bench = bench
        self._stage = stage
        self._folder = bench.run_dir / stage.directory
        self._watch = StageWatch(bench, stage)
        self._services = StageServices(bench, stage, self._watch)
        self._published = Published(bench.plan.published)
        self._audit = PortAudit(bench, stage, self._watch, self._published.inodes)
        self._gate = self._watch.gate
        self._due = [file for file in stage.files if file.newer or stage.attempt > 1]
        self._before: Before | None = None
        self._secrets = self._folder / "secrets.env"

    def carry_out(self) -> StageEnd:
        started_at, kills = utc_now(), probe_cgroup_memory().kills
        self._bench.pace.begin(self._stage.stretch)
        self._watch.record(state="starting", started_at=started_at)
        cause, snapshot = self._attempt(self._run), None
        if cause and cause.kind not in ("interrupted", "need"):
            cause = self._lost_node(self._lost_need(cause))
        if cause and cause.kind != "interrupted":
            cause = self._bench.pace.explain(cause)
            cause, snapshot = self._bench.explain(cause, kills), self._look_around()
        stopped = self._attempt(lambda: self._stop(self._services.going_on() if cause is None else []))
        cause = cause or stopped or self._attempt(self._judge)
        if cause:
            end_kept(self._bench)
        if self._before:
            self._before.close()
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
        force_directories(self._bench.run_dir, self._stage.directory)
        self._check_needs()
        if self._due:
            self._before = Before([file.path for file in self._due], self._bench.check_going)
        self._services.check_ports()
        for service in self._stage.services:
            self._services.start(service)
            self._published.open(service)
        self._audit.look()
        self._run_main()

    def _check_needs(self) -> None:
        for need, rule in zip(self._stage.needs, self._gate.facts.needs, strict=True):
            fact = probe_file(need, self._bench.check_going)
            if fact.problem:
                self._gate.refuse(rule, fact.problem)
                raise StageStopped(needed_file(self._stage, need, fact))
            self._gate.hold(rule, f"{fact.bytes} bytes")

    def _lost_need(self, cause: Cause) -> Cause:
        """Return `cause`, or the needed file that was changed since it was checked, which then came first."""
        lost = self._attempt(self._check_needs)
        if lost is None or lost.kind != "need":
            return cause
        return replace(lost, what=f"{lost.what}; then {cause.what}")

    def _lost_node(self, cause: Cause) -> Cause:
        """Return `cause`, or the node of the run's cluster that is gone, of which it followed."""
        if cause.kind == "node":
            return cause
        stopped = lambda: bool(self._bench.interrupt.name)  # noqa: E731
        return self._bench.nodes.settled(self._stage, cause.what, stopped) or cause

    def _run_main(self) -> None:
        self._bench.check_going()
        main = self._watch.main = self._bench.start(self._stage, MAIN, self._stage.argv, self._start_main)
        self._watch.begin_command()
        self._watch.record(state="running")
        while (code := main.poll()) is None:
            self._watch.look()
            self._watch.check_answers()
            self._watch.check_silence()
            self._audit.look_often()
        self._end_main(code)

    def _start_main(self) -> ChildProcess | RunningRayJob:
        stage = self._stage
        environment = {**self._bench.plan.env, **stage.env}
        if stage.ray:
            marks = {"PYTHONUNBUFFERED": "1", **self._bench.processes.marks(stage.name)}
            self._watch.pump.follow(STAGE_LOG, driver_log(stage.ray), self._folder / STAGE_LOG_FILE)
            return RunningRayJob(stage.ray, stage.argv, {**environment, **marks}, self._hand_over(stage))
        given = self._bench.grants.environment(stage.secrets)
        command = Command(argv=stage.argv, env={**environment, **given}, cwd=str(self._folder))
        with self._watch.pump.pipe(STAGE_LOG, self._folder / STAGE_LOG_FILE) as output:
            child = self._bench.processes.start(command, output, stage=stage.name, part=MAIN)
        self._watch.pump.wake_at_end(child.pid)
        return child

    def _hand_over(self, stage: StagePlan) -> str:
        """Hand a job of a cluster its secrets; a head of the run's own was started with them."""
        own_head = stage.ray is None or stage.ray.service
        return "" if own_head else handed_over(self._secrets, self._bench.grants.environment(stage.secrets))

    def _end_main(self, code: int) -> None:
        self._watch.end_command()
        self._watch.tell()
        self._watch.check_disk()
        good = code in self._stage.exit_codes
        (self._gate.hold if good else self._gate.refuse)(self._gate.facts.exit, self._ended(code))
        job_cause = self._job_cause()
        self._watch.record(exit_code=code)
        failed = bool(job_cause or not good)
        self._watch.check_services(TOLD_TO_STOP if failed else ())
        self._watch.check_forbidden()
        if failed:
            self._watch.settle(_SETTLE_S)
            usual = self._stage.exit_codes == (0,)
            raise StageStopped(job_cause or (failed_exit if usual else wrong_exit)(self._stage, code))
        self._audit.look()
        self._probe_work()

    def _ended(self, code: int) -> str:
        job = self._watch.main
        if isinstance(job, RunningRayJob) and job.facts.exit_code is None:
            return f"{job.facts.status}, Ray tells no code"
        return ended(code)

    def _probe_work(self) -> None:
        """Send the requests that must be answered while the services still run."""
        for probe, rule in zip(self._stage.probes, self._gate.facts.probes, strict=True):
            problem = await_answer(probe, self._watch.look)
            (self._gate.refuse if problem else self._gate.hold)(rule, problem or "as told")
            if problem:
                raise StageStopped(failed_probe(self._stage, probe, problem))

    def _job_cause(self) -> Cause | None:
        job, ray, rule = self._watch.main, self._stage.ray, self._gate.facts.ray
        if not isinstance(job, RunningRayJob) or not ray or not rule:
            return None
        facts = job.facts
        succeeded = facts.status == SUCCEEDED
        (self._gate.hold if succeeded else self._gate.refuse)(rule, facts.status)
        self._watch.record(ray_status=facts.status)
        return None if succeeded else failed_ray(self._stage, ray, facts.status, facts.exit_code, facts.message)

    def _stop(self, keep: Sequence[RunningService]) -> None:
        """End the command, then the services in reverse but those to `keep`; all at once when the user is waiting."""
        self._gate.begin_stop()
        self._watch.pump.let_flow()
        self._published.close()
        processes, main = self._bench.processes, self._watch.main
        for service in self._watch.services:
            service.close()
        if not self._bench.interrupt.name:
            if isinstance(main, RunningRayJob):
                main.stop()
                remove_file(self._secrets)
            elif main:
                processes.stop(main)
            self._services.stop(keep)
        left = processes.stop_all([service.child for service in keep])
        if left:
            self._bench.journal.event(self._stage.name, "left-running", pids=[process.pid for process in left])
        self._services.leave(keep)
        if isinstance(main, ChildProcess):
            self._watch.record(exit_code=main.poll())
        self._watch.close_logs()
        self._watch.check_disk()

    def _judge(self) -> None:
        """Look at what only the end of a command that ended well shows: required lines, metrics and files."""
        missing = self._gate.missing_lines()
        self._gate.end()
        self._watch.check_forbidden()
        problems = []
        for file, rule in zip(self._stage.files, self._gate.facts.files, strict=True):
            before = self._before if file in self._due else None
            fact = probe_file(file, self._bench.check_going, before=before)
            (self._gate.refuse if fact.problem else self._gate.hold)(rule, fact.problem or "complete")
            if fact.problem:
                problems.append(missing_file(self._stage, file, fact))
        lines = [missing_line(self._stage, asked, n, self._gate.last_line(asked.log)) for asked, n in missing]
        for cause in (*lines, *problems):
            raise StageStopped(cause)
