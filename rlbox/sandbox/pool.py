"""The sandbox of this machine: runs what is asked, at once one more than there are cores, and leaves nothing."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlbox.errors import NodeError, TimedOut, WorkFailed
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.sandbox.answer import answer, report_error, verdict
from rlbox.sandbox.isolation import LAYERS, NAMESPACES, SECCOMP, IsolationLevel
from rlbox.sandbox.limits import ProgramLimits, wall_s
from rlbox.sandbox.process_tree import list_children, list_descendants
from rlbox.sandbox.program_cgroup import PREFIX, forget, forget_dead
from rlbox.sandbox.request import LANGUAGES, ProgramRequest
from rlbox.sandbox.root import PROGRAMS
from rlbox.sandbox.scratch import remove_directory
from rlbox.sandbox.worker_zygote import WorkerHandle, WorkerZygote
from rlbox.system.command import run_command
from rlbox.system.libc import set_child_subreaper
from rlbox.values import Command

_PREFIXES = "import json, sys; print(json.dumps(sorted({sys.prefix, sys.base_prefix, sys.exec_prefix})))"
_PROGRAMS = (
    200  # that a keeper is ready for, one after another: then the seed of hashes, which they share, is a new one
)
_NEXT = 30  # programs before its last one the next keeper gets ready
_ASKED_S = 60.0
_SPARE_S = 60  # for starting, ending and a busy machine, beside the limits that the keeper minds


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the sandbox is set up.

    Attributes
    ----------
    python
        Interpreter of the programs.
    weak
        Run them also where the kernel gives no wall; every answer says so.
    scratch
        Where their folders are made; empty: the machine's place for such.
    layers
        Layers that are tried.
    at_once
        Requests at a time; 0: one more than there are cores, for one that is starting or ending leaves its core free.
    """

    python: str
    limits: ProgramLimits = field(default_factory=ProgramLimits)
    weak: bool = False
    scratch: str = ""
    layers: tuple[str, ...] = LAYERS
    at_once: int = 0


class Pool:
    """Runs requests; safe to be asked from many threads. `close` ends what runs and removes its folder.

    The process is the pool's alone: it adopts what keepers lose, and ends every child but the one that makes keepers.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._python = os.path.abspath(shutil.which(settings.python) or settings.python)  # keepers work elsewhere
        self._read = _python_folders(self._python)
        self._at_once = settings.at_once or len(os.sched_getaffinity(0)) + 1
        self._free = threading.BoundedSemaphore(self._at_once)
        self._folder = Path(tempfile.mkdtemp(prefix="rlbox-sandbox-", dir=settings.scratch or None)).resolve()
        self._lock = threading.Lock()
        self._idle: list[WorkerHandle] = []
        self._keepers: set[WorkerHandle] = set()
        self._number = 0
        self._closed = False
        self._graves = threading.Lock()
        self._proven = False  # a program has run
        self._ready = {NAMESPACES, SECCOMP} <= set(settings.layers)
        set_child_subreaper()
        forget_dead()
        self._nursery = WorkerZygote()

    def __enter__(self) -> Pool:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()

    def run(self, request: ProgramRequest, is_awaited: Callable[[], bool] = lambda: True) -> dict[str, Any]:
        """Return the answer to one request; it waits for its turn, and is not run if nobody awaits it any more."""
        if request.language not in LANGUAGES:
            return report_error(f"language {request.language!r}: there are {', '.join(LANGUAGES)}")
        language, limits = LANGUAGES[request.language], self._lowered(request)
        files = {**request.files, language.file: request.code.encode("utf-8", "surrogatepass")}
        if request.check:
            if request.language != "python":
                return report_error(f"language {request.language!r}: programs in python alone can be checked")
            pair = [(self._python, "-B", f"{PROGRAMS}/{name}.py") for name in ("checker", "candidate")]
            return verdict(self._keep(pair, files, limits, limits.cpu_s, is_awaited, check=request.check.as_json()))
        build: dict[str, Any] | None = None
        if language.build:
            build = self._keep([language.build], files, limits, limits.compile_s, is_awaited, fetch=("main",))
            if build["limit"] or build["programs"][0]["return_code"]:
                return answer(build, build=build, runs=False)
            files["main"] = base64.b64decode(build["files"]["main"])
        program = self._main() if request.language == "python" else language.run
        told = self._keep([program], files, limits, limits.cpu_s, is_awaited, stdin=request.stdin, fetch=request.fetch)
        return answer(told, build=build)

    def strength(self) -> tuple[IsolationLevel, str]:
        """Return the strength that a program has here, by running one, and what went wrong with it, or nothing."""
        told = self._keep([self._main()], {"main.py": b"print(1 + 1)\n"}, self.settings.limits, 10)
        if told["limit"]:
            return IsolationLevel.of((), told.get("missing", {})), str(told.get("message") or told["limit"])
        printed = told["programs"][0]
        wrong = "" if printed["stdout"] == "2\n" else f"a program printed {printed['stdout']!r}: {printed['stderr']}"
        return IsolationLevel.of(told["layers"], told["missing"]), wrong

    def get_ready(self) -> None:
        """Have a keeper get ready for each request that may run at a time, beside one that there is."""
        for __ in range(self._at_once - 1 if self._ready else 0):
            threading.Thread(target=self._prepare).start()

    def close(self) -> None:
        """End what runs and remove what is left."""
        with self._lock:
            keepers = list(self._keepers)
            self._closed = True
        for keeper in keepers:
            keeper.close()
        for keeper in keepers:
            self._bury(keeper)
        self._nursery.close()
        with contextlib.suppress(OSError):
            remove_directory(self._folder)

    def _lowered(self, request: ProgramRequest) -> ProgramLimits:
        return self.settings.limits.lowered(request.run_s, request.compile_s, request.memory_mb)

    def _keep(
        self,
        programs: Sequence[Sequence[str]],
        files: Mapping[str, bytes],
        limits: ProgramLimits,
        cpu_s: float,
        is_awaited: Callable[[], bool] = lambda: True,
        *,
        stdin: str = "",
        fetch: Sequence[str] = (),
        check: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Have a keeper carry out one plan; nothing of it is left afterwards, whatever became of the keeper."""
        with self._free:
            if not is_awaited():
                return {"limit": "start", "message": "who asked is gone"}
            plan = {
                "programs": [list(words) for words in programs],
                "files": {name: base64.b64encode(content).decode() for name, content in files.items()},
                "limits": limits.as_json(),
                "cpu_s": cpu_s,
                "stdin": stdin,
                "fetch": list(fetch),
                "check": check,
            }
            try:
                told = self._ask(plan, wall_s(cpu_s) + _SPARE_S)
                if told["limit"] == "unready" or (told["limit"] == "start" and self._ready and not self._proven):
                    self._give_up()
                    told = self._ask(plan, wall_s(cpu_s) + _SPARE_S)
                self._proven = self._proven or told["limit"] != "start"
                return told
            except OSError as error:
                return {"limit": "start", "message": f"the sandbox could not start a program: {error}"}

    def _main(self) -> list[str]:
        """Return the words that carry out a program in Python."""
        return [self._python if word == "python" else word for word in LANGUAGES["python"].run]

    def _ask(self, plan: Mapping[str, Any], wait_s: float) -> dict[str, Any]:
        """Have a keeper carry out one plan; nothing of it is left afterwards, whatever became of the keeper."""
        keeper = self._take()
        try:
            return keeper.run_or_kill(plan, wait_s)
        finally:
            self._give_back(keeper)

    def _take(self) -> WorkerHandle:
        """Return the keeper that was used most, or a new one."""
        while True:
            with self._lock:
                if not self._idle:
                    break
                keeper = min(self._idle, key=lambda one: one.left)
                self._idle.remove(keeper)
            if keeper.waits():
                return keeper
            self._bury(keeper)
        return self._new()

    def _new(self) -> WorkerHandle:
        """Return a keeper that no program was in."""
        with self._lock:
            self._number += 1
            scratch = self._folder / str(self._number)
            group = f"{PREFIX}{os.getpid()}-{self._number}"
        settings = {
            "ready": self._ready,
            "scratch": str(scratch),
            "group": group,
            "python": self._main(),
            "read": self._read,
            "layers": self.settings.layers,
            "weak": self.settings.weak,
            "limits": self.settings.limits.as_json(),
        }
        keeper = self._nursery.keeper(settings, _PROGRAMS if self._ready else 1)
        with self._lock:
            self._keepers.add(keeper)
        return keeper

    def _give_up(self) -> None:
        """Have keepers be made for one request each: what one cannot have ready here, none can."""
        self._ready = False
        with self._lock:
            idle = list(self._idle)
        for keeper in idle:
            self._bury(keeper)

    def _give_back(self, keeper: WorkerHandle) -> None:
        """Keep a keeper for another request, or end it; the one that will follow it gets ready before it is needed."""
        with self._lock:
            goes_on = keeper.left > 0 and self._ready and not self._closed
            if goes_on:
                self._idle.append(keeper)
        if not goes_on and (keeper.broken or not self._ready):
            self._bury(keeper)
        elif not goes_on:
            threading.Thread(target=self._bury, args=(keeper,)).start()  # all of its programs have ended
        elif keeper.left == _NEXT:
            threading.Thread(target=self._prepare).start()

    def _prepare(self) -> None:
        with contextlib.suppress(OSError):
            keeper = self._new()
            with self._lock:
                if not self._closed:
                    self._idle.append(keeper)
                    return
            self._bury(keeper)

    def _bury(self, keeper: WorkerHandle) -> None:
        """End a keeper with all that it keeps, and remove what it had."""
        with self._graves:
            if keeper not in self._keepers:
                return
            keeper.close()
            self._nursery.bury(keeper)
            self._sweep()
            forget(keeper.group)
            with contextlib.suppress(OSError):
                remove_directory(keeper.scratch)
            with self._lock:
                self._keepers.remove(keeper)
                if keeper in self._idle:
                    self._idle.remove(keeper)

    def _sweep(self) -> None:
        """End what a killed keeper left: it is this process' own then, and not what makes keepers.

        None is waited for alone: the first process of a namespace ends only after all others of it are buried.
        """
        with self._nursery.lock:
            while lost := [pid for pid in list_children(os.getpid()) if pid != self._nursery.pid]:
                for pid in lost:
                    for each in (*list_descendants(pid), pid):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(each, signal.SIGKILL)
                for pid in lost:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)
                time.sleep(0.002)


def _python_folders(python: str) -> list[str]:
    """Return what an interpreter needs to be read."""
    where, step = "the interpreter of programs in the sandbox", _("name one with --python")
    try:
        outcome = run_command(Command(argv=(python, "-I", "-c", _PREFIXES), timeout_s=_ASKED_S))
    except (OSError, WorkFailed, TimedOut) as error:
        raise NodeError(_("{python} does not run").format(python=python), where=where, next_step=step) from error
    if not outcome.ok:
        raise NodeError(_("{python} does not run").format(python=python), where=where, next_step=step)
    site = {str(path) for path in Path("/etc").glob("python3*")}  # Debian's sitecustomize.py is a link to there
    return sorted({*parse_json(outcome.stdout), *_on_the_way(python), *site} - {"/"})


def _on_the_way(program: str) -> set[str]:
    """Return the folders of a program and of each link that leads to it, as to a venv's that another venv made."""
    path = Path(program)
    found = {str(path.parent), str(path.resolve().parent)}
    while path.is_symlink():
        path = Path(os.path.normpath(path.parent / os.readlink(path)))
        found.add(str(path.parent))
    return found
