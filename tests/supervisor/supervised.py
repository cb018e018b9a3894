"""Runs of the real supervisor over small scripts: what a test needs to write one down."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from freeport import free_port as free_port

import rlbox.supervise.failure_report  # noqa: F401
from rlbox.job.gate import FileRule, ForbidRule, Ready, RequireRule
from rlbox.job.plan import ProcessPaths, RayJobPlan, RunCluster, RunPlan, ServicePlan, StagePlan
from rlbox.record.state import RunState, StageState, load_run_state
from rlbox.supervise import __main__ as supervise
from rlbox.system.process_table import is_own_process_with_env, probe_processes

PATIENCE_S = 120.0

SERVER = """
import http.server, os, signal, sys, threading, time
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'{"ok": "fine"}')
    do_POST = do_GET
class Server(http.server.HTTPServer):
    allow_reuse_address = True
server = Server(("127.0.0.1", int(sys.argv[1])), Answer)
print("listening", flush=True)
server.serve_forever()
"""


def forbid_rule(pattern: str, *, log: str = "stage", why: str = "") -> ForbidRule:
    return ForbidRule(pattern=pattern, log=log, why=why)


def line_rule(pattern: str, *, log: str = "stage", count: int = 1, why: str = "") -> RequireRule:
    return RequireRule(pattern=pattern, log=log, count=count, why=why)


def file_rule(path: Path, *, min_bytes: int = 1, manifest: bool = False) -> FileRule:
    return FileRule(path=str(path), min_bytes=min_bytes, manifest=manifest, why="")


def python(code: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code, *words)


def service(
    name: str, port: int, argv: tuple[str, ...] | None = None, *, start_s: float = 30.0, contains: str = "ok"
) -> ServicePlan:
    return ServicePlan(
        name=name,
        title=name,
        argv=argv or python(SERVER, str(port)),
        env={},
        ports={name: port},
        ready=Ready(url=f"http://127.0.0.1:{port}/", method="GET", body="", contains=contains),
        start_s=start_s,
        log=f"{name}.log",
    )


def join_groups(groups: Sequence[Path]) -> None:
    """Enter control groups."""
    for group in groups:
        (group / "cgroup.procs").write_text(str(os.getpid()))


class Supervisor:
    """A process that supervises a run directory, forked so that it need not import everything again."""

    def __init__(
        self, run_dir: Path, environment: dict[str, str], stdin: bytes | None = None, groups: Sequence[Path] = ()
    ) -> None:
        self._stdin, self._groups = stdin, groups
        self._err = run_dir.with_name(f"{run_dir.name}.err")
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                code = self._supervise(run_dir, environment)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)  # whatever happens, this copy of the test process never goes on as one

    def _supervise(self, run_dir: Path, environment: dict[str, str]) -> int:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        os.environ.update(environment)
        join_groups(self._groups)
        if self._stdin is not None:
            readable, writable = os.pipe()
            os.write(writable, self._stdin)
            os.close(writable)
            os.dup2(readable, 0)
        with open(self._err, "w") as sys.stderr:
            return supervise.main([str(run_dir)])

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def finish(self) -> tuple[int, str]:
        """Wait for its end; return exit code and standard error."""
        wait_for(lambda: self.poll() is not None)
        assert self.returncode is not None
        return self.returncode, self._err.read_text()

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Bench:
    """One run directory, and the supervisor over it."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.run_id = f"test-{os.getpid()}-{time.monotonic_ns()}"
        self.stages: list[StagePlan] = []
        self.environment: dict[str, str] = {}
        self.secrets: dict[str, str] = {}
        self.aliases: tuple[tuple[str, ...], ...] = ()
        self.cluster: RunCluster | None = None
        self.stdin: bytes | None = None
        self.groups: list[Path] = []
        self.supervisor: Supervisor | None = None

    def stage(
        self,
        name: str,
        argv: tuple[str, ...],
        *,
        services: tuple[ServicePlan, ...] = (),
        needs: tuple[FileRule, ...] = (),
        ray: RayJobPlan | None = None,
        require: tuple[RequireRule, ...] = (),
        forbid: tuple[ForbidRule, ...] = (),
        files: tuple[FileRule, ...] = (),
        total_s: float = 60.0,
        silence_s: float = 60.0,
        **more: Any,
    ) -> None:
        """Add a stage to the plan; `more` are further fields of `StagePlan`."""
        self.stages.append(
            StagePlan(
                name=name,
                title=name,
                directory=f"stages/{len(self.stages) + 1}-{name}",
                argv=argv,
                env={},
                services=services,
                needs=needs,
                ray=ray,
                require=require,
                forbid=forbid,
                files=files,
                total_s=total_s,
                silence_s=silence_s,
                **more,
            )
        )

    def write_plan(self) -> None:
        """Write the run directory as it is before a run."""
        run = str(self.run_dir)
        plan = RunPlan(
            run_id=self.run_id,
            job="job",
            target="local",
            place="here",
            profile="",
            params={},
            paths=ProcessPaths(run=run, job=run, data=run, python=sys.executable),
            env={"RLBOX_TEST": "1"},
            stages=tuple(self.stages),
            secrets=tuple(self.secrets),
            aliases=self.aliases,
            cluster=self.cluster,
        )
        self.run_dir.mkdir(parents=True, exist_ok=True)
        (self.run_dir / "plan.json").write_text(json.dumps(plan.as_json()))

    def start(self) -> Supervisor:
        """Write the plan and start the supervisor."""
        self.write_plan()
        stdin = json.dumps(self.secrets).encode() + b"\n" if self.secrets and self.stdin is None else self.stdin
        self.supervisor = Supervisor(self.run_dir, self.environment, stdin, self.groups)
        return self.supervisor

    def finish(self) -> tuple[int, str]:
        """Wait for the supervisor; return its exit code and standard error, nothing of the run being left."""
        assert self.supervisor is not None
        code, err = self.supervisor.finish()
        assert "Traceback" not in err
        assert self.marked() == []
        return code, err

    def run(self) -> int:
        """Carry the run out and return the exit code."""
        self.start()
        return self.finish()[0]

    def state(self) -> RunState:
        return load_run_state(self.run_dir)

    def states(self) -> list[str]:
        return [stage.state for stage in self.state().stages]

    def last(self, name: str) -> StageState:
        return next(stage for stage in self.state().stages if stage.name == name)

    def cause(self) -> Any:
        """Return the cause of the run's failed stage."""
        return next(stage.cause for stage in self.state().stages if stage.cause)

    def log(self, path: str) -> str:
        return (self.run_dir / "stages" / path).read_text()

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run_dir / "events.jsonl").read_text().splitlines()]

    def marked(self) -> list[int]:
        """Return the processes that carry the mark of this run."""
        marks = {"RLBOX_RUN_DIR": str(self.run_dir)}
        return [p.pid for p in probe_processes().values() if not p.is_zombie and is_own_process_with_env(p.pid, marks)]


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until `condition` holds; only a hang fails it."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, "never came true"
        time.sleep(0.02)
