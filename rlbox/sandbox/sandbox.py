"""The sandbox of this machine: it runs requests, one more at a time than there are cores, and leaves nothing behind."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlbox.config.project import PACKAGE
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.sandbox.cgroup import format_cgroup_name, remove_cgroup_if_empty
from rlbox.sandbox.isolation import CHECKER_FOLDER
from rlbox.sandbox.plan import Plan, PlanOutcome, decode_outcome, encode_json_line, format_isolation_strength
from rlbox.sandbox.request import LANGUAGES, ProgramRequest, RequestLimits, compute_wall_limit_s
from rlbox.sandbox.response import build_error_response, build_run_response, build_verdict_response
from rlbox.system.command import DEVNULL, run_command_or_raise, start_command, wait_for_exit
from rlbox.system.libc import set_child_subreaper
from rlbox.system.process_table import list_child_pids
from rlbox.system.safe_files import remove_tree
from rlbox.values import Command

_PRINT_PREFIXES = "import json, sys; print(json.dumps(sorted({sys.prefix, sys.base_prefix, sys.exec_prefix})))"
_PROBE_S = 60.0
_SPARE_S = 60.0
"""For starting, ending and a busy machine, beside the limits that the worker minds."""
_END_S = 30.0


class Sandbox:
    """Runs requests by the interpreter `python`; many threads may call it, each with one of `slots`.

    `scratch`: where the programs' folders are made; empty: the machine's folder for temporary files. `layers`: those
    that are tried; where these are no wall, nothing is run. `close` ends what runs.
    """

    def __init__(self, python: str, limits: RequestLimits, *, scratch: str, layers: Sequence[str]) -> None:
        self.limits, self._layers = limits, layers
        self._python = os.path.abspath(shutil.which(python) or python)  # programs work elsewhere
        self._readable = _list_python_folders(self._python)
        # one more than there are cores: a request that is starting or ending leaves its core free
        self.slots = threading.BoundedSemaphore(len(os.sched_getaffinity(0)) + 1)
        self._folder = Path(tempfile.mkdtemp(prefix="rlbox-sandbox-", dir=scratch or None)).resolve()
        self._lock = threading.Lock()
        self._count = 0
        self._workers: set[_WorkerProcess] = set()
        self._idle_workers: list[_WorkerProcess] = []
        set_child_subreaper()  # what a killed worker leaves comes to this process

    def close(self) -> None:
        for worker in list(self._workers):
            self._remove_worker(worker, _END_S)
        with contextlib.suppress(OSError):
            remove_tree(self._folder)

    def run(self, request: ProgramRequest) -> dict[str, Any]:
        if request.language not in LANGUAGES:
            return build_error_response(f"language {request.language!r}: there are {', '.join(LANGUAGES)}")
        language = LANGUAGES[request.language]
        files = {**request.files, language.file: request.code.encode("utf-8", "surrogatepass")}
        plan = self._make_plan(files, request.limits)
        if request.check:
            if request.language != "python":
                return build_error_response(f"language {request.language!r}: programs in python alone can be checked")
            pair = [[self._python, "-B", f"{CHECKER_FOLDER}/{name}"] for name in ("checker.py", "candidate.py")]
            plan = replace(plan, concurrent_programs=pair, check=dict(request.check))
            return build_verdict_response(self._run_plan(plan))
        build = None
        if language.build:
            limits = replace(request.limits, cpu_s=request.limits.compile_s)
            compiler = replace(plan, concurrent_programs=[list(language.build)], limits=limits, fetch=["main"])
            build = self._run_plan(compiler)
            if build.limit or build.programs[0].return_code or "main" not in build.files:
                return build_run_response(build, build=build)
            plan = replace(plan, files={**plan.files, "main": build.files["main"]})
        argv = [self._python if word == "python" else word for word in language.run]
        plan = replace(plan, concurrent_programs=[argv], stdin=request.stdin, fetch=list(request.fetch))
        return build_run_response(self._run_plan(plan), build=build)

    def probe_isolation_layers(self) -> dict[str, Any]:
        """Run a small program; return its layers, and under `wrong` why it did not run well, or an empty text."""
        plan = self._make_plan({}, self.limits)
        plan = replace(plan, concurrent_programs=[[self._python, "-c", "print(1 + 1)"]])
        outcome = self._run_plan(plan)
        error = outcome.message or outcome.limit
        if not error and outcome.programs[0].stdout != "2\n":
            error = f"a program printed {outcome.programs[0].stdout!r}: {outcome.programs[0].stderr}"
        strength = format_isolation_strength(outcome.layers)
        return {"layers": outcome.layers, "missing": outcome.missing, "strength": strength, "wrong": error}

    def _make_plan(self, files: Mapping[str, bytes], limits: RequestLimits) -> Plan:
        return Plan(
            concurrent_programs=[],
            files={name: base64.b64encode(content).decode() for name, content in files.items()},
            limits=limits,
            readable_paths=self._readable,
            wanted_layers=list(self._layers),
        )

    def _run_plan(self, plan: Plan) -> PlanOutcome:
        """Have a worker run a plan; nothing of it is left afterwards, whatever became of the worker."""
        worker = self._take_worker()
        try:
            outcome = worker.run(plan)
        except (OSError, ValueError) as error:
            message = f"the worker that ran the program ended: {error or 'killed'}"
            outcome = PlanOutcome(limit="start", message=message, has_live_processes=True)
        if outcome.has_live_processes:
            self._remove_worker(worker)
        else:
            self._idle_workers.append(worker)
        return outcome

    def _take_worker(self) -> _WorkerProcess:
        while self._idle_workers:
            worker = self._idle_workers.pop()
            if worker.process.poll() is None:
                return worker
            self._remove_worker(worker)
        with self._lock:
            self._count += 1
            worker = _WorkerProcess(self._folder / str(self._count))
            self._workers.add(worker)
        return worker

    def _remove_worker(self, worker: _WorkerProcess, timeout_s: float = 0.0) -> None:
        """End a worker and remove what it has left: processes, which this process has adopted, and the rest."""
        worker.end(timeout_s)
        with self._lock:
            self._workers.discard(worker)
            while orphans := set(list_child_pids(os.getpid())) - {worker.process.pid for worker in self._workers}:
                for pid in orphans:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(os.getpgid(pid), signal.SIGKILL)  # a program's group, or its worker's
                for pid in orphans:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, 0)
            remove_cgroup_if_empty(format_cgroup_name(os.getpid(), worker.process.pid))
            with contextlib.suppress(OSError):
                remove_tree(worker.scratch)


class _WorkerProcess:
    """A process that runs plans, and the socket to it; its programs' folder is made at `scratch`."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self._connection, worker_end = socket.socketpair()
        self._replies = self._connection.makefile("rb")
        command = Command(
            argv=(sys.executable, "-m", "rlbox.sandbox", "worker"),
            env={"PATH": os.defpath, "PYTHONPATH": str(PACKAGE.parent), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
        )
        with worker_end:
            self.process = start_command(command, base_env={}, stdin=worker_end.fileno(), stdout=DEVNULL, stderr=None)

    def run(self, plan: Plan) -> PlanOutcome:
        """Return how a plan ended; raises OSError or ValueError where the worker does not answer."""
        self._connection.settimeout(compute_wall_limit_s(plan.limits.cpu_s) + _SPARE_S)
        self._connection.sendall(encode_json_line(replace(plan, scratch=str(self.scratch))))
        return decode_outcome(self._replies.readline())

    def end(self, timeout_s: float) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        if wait_for_exit(self.process, timeout_s) is None:
            self.process.kill()
            self.process.wait()


def _list_python_folders(python: str) -> list[str]:
    """Return what an interpreter must be able to read: its own, and of each link to it, as to a venv's."""
    command = Command(argv=(python, "-I", "-c", _PRINT_PREFIXES), timeout_s=_PROBE_S)
    outcome = run_command_or_raise(
        command, _("{python} does not run").format(python=python), _("name one with --python")
    )
    path = Path(python)
    folders = {*parse_untrusted_json(outcome.stdout), str(path.parent), str(path.resolve().parent)}
    while path.is_symlink():
        path = Path(os.path.normpath(path.parent / os.readlink(path)))
        folders.add(str(path.parent))
    site = {str(path) for path in Path("/etc").glob("python3*")}  # Debian's sitecustomize.py is a link to there
    return sorted((folders | site) - {"/"})
