"""Real command lines over runs in place, without the preparation of the place: what tests of their survival share."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes import CHECKOUT, ON_IMAGE, Folder
from supervised import Bench, file_rule, wait_for

from rlbox.diagnose.cause import Cause
from rlbox.errors import SpecError
from rlbox.job.plan import RunPlan
from rlbox.provision.provision import StageEnvironment
from rlbox.record.disk_lock import LockOwner, acquire_disk_lock, find_lock_owner
from rlbox.record.run_dir import create_lock_owner_from_plan, load_plan_file, write_run_plan
from rlbox.record.run_store import RunsNotReconciled, RunStore
from rlbox.record.state import RunState, find_run_cause, load_run_state
from rlbox.record.supervisor_file import SupervisorInfo, is_host_supervisor_alive, load_supervisor_info
from rlbox.run.backend import open_container_runtime
from rlbox.run.host import HostRunStarter
from rlbox.system.process_table import is_own_process_with_env, probe_process, probe_processes

# `rlbox`, with this interpreter as the place of all targets
BARE = """
import os, sys
from pathlib import Path
import rlbox.run.host as host
from rlbox.cli import main
place = host.StageEnvironment(python=Path(sys.executable), argv_prefix=(), env=dict(os.environ))
host.provision_stage_environment = lambda *words, **more: place
sys.exit(main(sys.argv[1:]))
"""

JOB = """
title = "two small stages"
target = "mine"
[[stages]]
name = "first"
title = "writes a file"
command = ["sh", "-c", "FIRST"]
limits = { total_s = 60, silence_s = 30 }
[stages.gate]
require = [{ pattern = 'made it' }]
files = [{ path = "{run}/made-1" }]
[[stages]]
name = "second"
title = "needs it"
command = ["sh", "-c", "SECOND"]
limits = { total_s = 60, silence_s = 30 }
[stages.gate]
files = [{ path = "{run}/made-2" }]
"""
FIRST = "echo one > {run}/made-1; echo made it"
SECOND = "echo two > {run}/made-2; echo done"


@dataclass(frozen=True, kw_only=True)
class Said:
    """What one command line left behind."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> dict[str, Any]:
        return dict(json.loads(self.out))


class Disk:
    """A data disk on which runs in place are started without a command line, which would cost a second each."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.data.mkdir(exist_ok=True)
        self.run_store = RunStore(data_dir=data, open_runtime=open_container_runtime)
        self.run_dirs: list[Path] = []

    def make(self, *stages: tuple[str, str], **changes: Any) -> RunPlan:
        """Write the directory of a run of shell commands (name and script; `{run}` is the run directory)."""
        run_dir = self.data / "runs" / f"job-{len(self.run_dirs)}"
        bench = Bench(run_dir)
        bench.run_id = run_dir.name
        for name, script in stages:
            files = (file_rule(run_dir / f"made-{name}"),)
            bench.stage(name, ("sh", "-c", script.replace("{run}", str(run_dir))), files=files)
        bench.write_plan()
        plan = load_plan_file(run_dir)
        paths = dataclasses.replace(plan.paths, data=str(self.data))
        plan = dataclasses.replace(
            plan, paths=paths, user="tester", uid=os.getuid(), host=socket.gethostname(), **changes
        )
        write_run_plan(run_dir, plan)
        self.run_dirs.append(run_dir)
        return plan

    def begin(self, plan: RunPlan) -> None:
        """Start the run as `rlbox run --place here` does; its warden is a child of this process."""
        environment = StageEnvironment(python=Path(sys.executable), argv_prefix=(), env=dict(os.environ))
        prepared = HostRunStarter(target=plan.target, run_store=self.run_store, environment=environment)
        lock = acquire_disk_lock(self.data, create_lock_owner_from_plan(plan))
        try:
            prepared.start(plan, self.data / "runs" / plan.run_id, {}, lock)
        finally:
            lock.close_own_handle()

    def end_dead_runs(self) -> RunsNotReconciled:
        return self.run_store.clean_up_dead_runs_unless_run_holds_disk(LockOwner(what="test"))

    def state(self) -> RunState:
        return load_run_state(self.run_dirs[-1])

    def states(self) -> list[str]:
        try:
            return [stage.state for stage in self.state().stages]
        except SpecError:
            return []

    def cause(self) -> Cause:
        cause = find_run_cause(self.state())
        assert cause
        return cause

    def supervisor(self) -> SupervisorInfo:
        """The supervisor of the latest run, once it is there."""
        wait_for(lambda: load_supervisor_info(self.run_dirs[-1]))
        facts = load_supervisor_info(self.run_dirs[-1])
        assert facts
        return facts

    def wait_until_free(self) -> None:
        """Wait until nobody holds the disk: the run, and all that watched over it, have ended."""
        wait_for(lambda: find_lock_owner(self.data) is None)

    def marked(self) -> list[int]:
        """Processes that carry the mark of a run of this disk."""
        table = probe_processes()
        return [
            p.pid
            for r in self.run_dirs
            for p in table.values()
            if not p.is_zombie and is_own_process_with_env(p.pid, mark(r.name))
        ]

    def close(self) -> None:
        """End what a failed test leaves."""
        for run_dir in self.run_dirs:
            facts = load_supervisor_info(run_dir)
            if facts and is_host_supervisor_alive(run_dir, facts):
                os.kill(facts.pid, signal.SIGKILL)
        for pid in self.marked():
            os.kill(pid, signal.SIGKILL)


def mark(run: str) -> dict[str, str]:
    return {"RLBOX_RUN": run}


class Site:
    """A project folder and a data disk, and command lines over them."""

    def __init__(self, root: Path) -> None:
        self.folder = Folder(root / "project")
        self.folder.target("mine", ON_IMAGE)
        self.folder.lock("mine")
        self.data = root / "data"
        self.data.mkdir(exist_ok=True)
        self.env = {
            **os.environ,
            "RLBOX_DATA": str(self.data),
            "PYTHONPATH": str(CHECKOUT),
            "XDG_CACHE_HOME": str(root / "cache"),
        }

    def job(self, first: str = FIRST, second: str = SECOND) -> None:
        """Write the job `two`."""
        self.folder.job("two", JOB.replace("FIRST", first).replace("SECOND", second))

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-c", BARE, *words]

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        """Start a command line in a session of its own, as a terminal would."""
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        own = pipes | more
        return subprocess.Popen(self.argv(*words), env=self.env, cwd=self.folder.path, start_new_session=True, **own)

    def __call__(self, *words: str) -> Said:
        with self.start(*words) as process:
            out, err = process.communicate(timeout=120)
        return Said(code=process.returncode, out=out, err=err)

    def run(self, *words: str) -> Said:
        """Carry out `rlbox run two --place here`."""
        return self("run", "two", "--place", "here", *words)

    def detach(self, *words: str) -> str:
        """Start a run that goes on by itself; return its id."""
        said = self.run("--detach", *words)
        assert said.code == 0, said.err
        return said.out.strip()

    def runs(self) -> list[Path]:
        """The run directories, the oldest first."""
        found = [path for path in (self.data / "runs").glob("*") if (path / "plan.json").exists()]
        return sorted(found, key=lambda path: path.name)

    def run_dir(self) -> Path:
        return self.runs()[-1]

    def state(self) -> dict[str, Any]:
        return dict(json.loads((self.run_dir() / "run.json").read_text()))

    def states(self) -> list[str]:
        try:
            return [stage["state"] for stage in self.state()["stages"]]
        except (OSError, ValueError, IndexError):
            return []

    def cause(self) -> str:
        state = self.state()
        causes = [state["cause"], *(stage["cause"] for stage in state["stages"])]
        return str(next(cause["what"] for cause in causes if cause))

    def supervisor(self) -> SupervisorInfo:
        """The supervisor of the latest run, once it is there."""
        wait_for(lambda: self.runs() and load_supervisor_info(self.run_dir()))
        facts = load_supervisor_info(self.run_dir())
        assert facts
        return facts

    def marked(self) -> list[int]:
        """Processes that carry the mark of a run of this site, or are its supervisor or warden."""
        table = probe_processes()
        found = []
        for run in self.runs():
            found += [
                p.pid for p in table.values() if not p.is_zombie and is_own_process_with_env(p.pid, mark(run.name))
            ]
            facts = load_supervisor_info(run)
            if facts:
                now = probe_process(facts.pid)
                found += [facts.pid] if now and now.start_ticks == facts.started and not now.is_zombie else []
        return found

    def wait_for_end(self) -> None:
        """Wait until nothing of a run lives any more."""
        wait_for(lambda: not self.marked())

    def close(self) -> None:
        """End what a failed test leaves."""
        for pid in self.marked():
            os.kill(pid, signal.SIGKILL)
