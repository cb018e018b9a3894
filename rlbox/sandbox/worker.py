"""A worker process: it starts a program behind its isolation, watches it, and reports its output and end."""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlbox.foreign import parse_json
from rlbox.sandbox import kernel
from rlbox.sandbox.isolation import GROUP, NAMESPACES, IsolationError, IsolationLevel, ProgramStart, fork_program
from rlbox.sandbox.limits import ProgramLimits, wall_s
from rlbox.sandbox.lines import ProgramLines
from rlbox.sandbox.monitor import LOOK_S, Poller, ProgramMonitor
from rlbox.sandbox.process_tree import ProcessTree
from rlbox.sandbox.program_cgroup import ProgramGroup
from rlbox.sandbox.ready import RunningPrograms, WarmInterpreter, inside
from rlbox.sandbox.root import PROGRAMS, SYSTEM, leave_namespaces, make_root
from rlbox.sandbox.scratch import read_files, write_files
from rlbox.system.libc import set_child_subreaper

_LAST_S = 0.001  # between looks for the end, once all outputs are closed


@dataclass
class _Place:
    """Where the programs of this request live: `folder` as seen from here, `inside` as they see it."""

    folder: Path
    inside: str
    root: str = ""
    group: ProgramGroup | None = None
    lacks: dict[str, str] = field(default_factory=dict)


def run_program(plan: Mapping[str, Any], control: int) -> dict[str, Any]:
    """Carry out a plan; return what came of it, as JSON types. `control` is the line to the server.

    Keys: `limit` (the one that was passed, `start` when nothing could be started with `message`, or empty), `cpu_s`,
    `wall_s`, `memory_mb`, `programs` (`return_code`, `stdout`, `stderr` of each), `word` (of the checker), `layers`,
    `missing`, `alive` (something outlived its end), `files`.
    """
    set_child_subreaper()
    limits = ProgramLimits.from_json(plan["limits"])
    began = time.monotonic()
    try:
        place = _make_place(plan, limits)
        write_files(place.folder, {name: base64.b64decode(text) for name, text in plan["files"].items()})
    except OSError as error:
        return {"limit": "start", "message": f"no folder could be made for a program: {error}"}
    with ProgramLines.drawn(plan["stdin"], plan["check"]) as lines:
        watch = ProgramMonitor(
            limits, plan["cpu_s"], "" if place.root else str(place.folder), ProcessTree(group=place.group)
        )
        pids, strength, message = _start(plan, limits, place, lines, watch)
        lines.close_given()
        if not message:
            _wait(watch, pids[0], lines, control, began + wall_s(plan["cpu_s"]))
        gone = watch.tree.end(watch.ended)
        if place.group:
            place.group.remove()
        left = {} if message else read_files(place.folder, plan["fetch"], limits.disk_mb << 20)
        return outcome(plan, watch, lines, pids, strength, began, left=left, message=message, alive=not gone)


def outcome(
    plan: Mapping[str, Any],
    watch: ProgramMonitor,
    lines: ProgramLines,
    programs: Sequence[int],
    strength: IsolationLevel,
    began: float,
    *,
    left: Mapping[str, bytes],
    message: str,
    alive: bool,
) -> dict[str, Any]:
    """Return what is told of programs that have ended; they are named as in `watch.ended`."""
    for fd in lines.outputs:
        lines.take(fd, watch.limits.output)
    if watch.tree.cpu_s > plan["cpu_s"]:
        watch.limit = watch.limit or "cpu"
    return {
        "limit": watch.limit,
        "message": message,
        "cpu_s": round(watch.tree.cpu_s, 4),
        "wall_s": round(time.monotonic() - began, 4),
        "memory_mb": watch.tree.peak_bytes >> 20,
        "programs": [{"return_code": watch.ended.get(one), **lines.texts(n)} for n, one in enumerate(programs)],
        "word": lines.word_text(),
        "layers": strength.layers,
        "missing": strength.missing,
        "alive": alive,
        "files": {name: base64.b64encode(content).decode() for name, content in left.items()},
    }


def _start(
    plan: Mapping[str, Any], limits: ProgramLimits, place: _Place, lines: ProgramLines, watch: ProgramMonitor
) -> tuple[list[int], IsolationLevel, str]:
    """Start the programs; return their ids, the strength of their walls, and why one did not start, or nothing."""
    pids: list[int] = []
    strength = IsolationLevel.of((), place.lacks)
    for number, argv in enumerate(plan["programs"]):
        checks = bool(plan["check"]) and number == 0  # the checker has no folder: the program under test has it
        doors = place.group.doors() if place.group else ()
        start = ProgramStart(
            argv=tuple(argv),
            fds=lines.of_program(number),
            folder="" if checks else place.inside,
            root=place.root,
            read=(*SYSTEM, *plan["read"], PROGRAMS),
            limits=limits,
            cpu_s=plan["cpu_s"],
            layers=tuple(plan["layers"]),
            weak=plan["weak"],
            lacks=place.lacks,
            doors=tuple(doors),
        )
        try:
            pid, strength, listener = fork_program(start)
        except (IsolationError, OSError) as error:
            watch.limit = "start"
            return pids, strength, str(error)
        finally:
            for door in doors:
                os.close(door)
        pids.append(pid)
        if listener >= 0:
            watch.listeners.append(listener)
    return pids, strength, ""


def _make_place(plan: Mapping[str, Any], limits: ProgramLimits) -> _Place:
    scratch, lacks = Path(plan["scratch"]), {}
    group = None
    if GROUP in plan["layers"]:
        memory = (limits.memory_mb + limits.disk_mb) << 20  # a folder in memory is counted, too
        group = ProgramGroup(plan["group"], tasks=limits.tasks, memory_bytes=memory)
        if group.lacks:
            lacks[GROUP] = group.lacks
    if NAMESPACES in plan["layers"]:
        try:
            leave_namespaces()
            root = scratch / "root"
            folder = make_root(root, (*SYSTEM, *plan["read"], PROGRAMS), limits.disk_mb)
            _fork_init()
            return _Place(folder=folder, inside=f"/{folder.name}", root=str(root), group=group, lacks=lacks)
        except OSError as error:
            lacks[NAMESPACES] = str(error)
    folder = scratch / "work"
    folder.mkdir()
    return _Place(folder=folder, inside=str(folder), group=group, lacks=lacks)


def _fork_init() -> None:
    """Fork the first process of the new process namespace: it only buries; with it all others there end."""
    if os.fork():
        return
    kernel.die_with_parent()
    os.closerange(0, 1 << 20)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        signal.sigwait({signal.SIGCHLD})
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _wait(watch: ProgramMonitor, first: int, lines: ProgramLines, control: int, deadline: float) -> None:
    """Wait until the first program has ended or a limit is passed."""
    poll, due = Poller(watch, lines, control), 0.0
    while first not in watch.ended and not watch.limit:
        poll.once(LOOK_S if poll.open_outputs else _LAST_S)
        watch.ended |= watch.tree.reap()
        due = poll.look(due, deadline)


_LONGEST = 1 << 13
_ENDED = "the process of the program ended before it began"


def handle_plan(ready: WarmInterpreter, plan: Mapping[str, Any], control: int) -> dict[str, Any]:
    """Run a plan in the warm interpreter; return what `run_program` returns. `control` is the line to the server."""
    limits, began = ProgramLimits.from_json(plan["limits"]), time.monotonic()
    with ProgramLines.drawn(plan["stdin"], plan["check"]) as lines:
        programs = range(len(plan["programs"]))
        try:
            request = ready.begin(plan, limits, [lines.of_program(number) for number in programs])
        except OSError as error:
            return {"limit": "start", "message": f"a program could not be started: {error}"}
        lines.close_given()
        watch = ProgramMonitor(limits, plan["cpu_s"], "", ProcessTree(group=ready.group, top=ready.pid))
        report = _Report(ready.report, watch, dict(ready.lacks))
        try:
            _wait_ready(watch, lines, request, report, control, began)
            _end(ready, watch)
            report.hear_the_rest()
            strength = IsolationLevel.of(set(ready.layers) - set(report.lacks), report.lacks)
            left = _left(request, plan, limits) if not report.message else {}
            return outcome(
                plan, watch, lines, programs, strength, began, left=left, message=report.message, alive=False
            )
        finally:
            request.close()
            for fd in watch.listeners:
                os.close(fd)


def _wait_ready(
    watch: ProgramMonitor, lines: ProgramLines, request: RunningPrograms, report: _Report, control: int, began: float
) -> None:
    """Wait until the first program has ended or a limit is passed."""
    over: list[bool] = []
    others = {report.line.fileno(): report.hear, request.ended: lambda: over.append(True)}
    poll, due = Poller(watch, lines, control, others), began + LOOK_S
    report.listens = poll.add
    while not over and not watch.limit:
        poll.once(LOOK_S)
        due = poll.look(due, began + wall_s(watch.cpu_s))


def _end(ready: WarmInterpreter, watch: ProgramMonitor) -> None:
    """End all processes of the request, and note how they did."""
    seconds, ended = ready.end()
    for number, status, most_kib in ended:
        watch.ended[number] = os.waitstatus_to_exitcode(status)
        watch.tree.peak_bytes = max(watch.tree.peak_bytes, most_kib << 10)
    watch.tree.bury(seconds)
    if not ended and not watch.limit:
        starved = watch.tree.group and watch.tree.group.starved()
        watch.limit = "memory" if starved else "start"


def _left(request: RunningPrograms, plan: Mapping[str, Any], limits: ProgramLimits) -> dict[str, bytes]:
    """Return the files that were asked for, of what the program left."""
    if not plan["fetch"]:
        return {}
    with inside(request.folder):
        return read_files(Path(), plan["fetch"], limits.disk_mb << 20)


@dataclass
class _Report:
    """What a request's processes say of themselves before a program is in them.

    `lacks` names layers that a program could not have, `message` says why one did not start.
    """

    line: socket.socket
    watch: ProgramMonitor
    lacks: dict[str, str]
    listens: Callable[[int], None] = lambda fd: None
    message: str = ""

    def hear(self) -> None:
        """Take one message."""
        part, fds, _, _ = socket.recv_fds(self.line, _LONGEST, 1)
        self.watch.listeners += fds
        for fd in fds:
            self.listens(fd)
        word, _, text = part.decode("utf-8", "replace").partition(" ")
        if word == "lacks":
            layer, _, self.lacks[layer] = text.partition(" ")
        elif word == "error" or not part:
            self.watch.limit, self.message = "start", text or _ENDED

    def hear_the_rest(self) -> None:
        """Take what was said before the end."""
        with contextlib.suppress(BlockingIOError):
            while not self.message:
                self.hear()
        if self.watch.limit == "start" and not self.message:
            self.message = _ENDED


def serve_forks(control: socket.socket) -> None:
    """Make a keeper of each line that comes over `control`, until it closes; bury the one whose id comes instead.

    Either is answered with the keeper's id, when it is done.
    """
    gc.freeze()  # keepers share what is loaded now
    ours = os.getpid()
    while True:
        word, fds, _, _ = socket.recv_fds(control, 100, 1)
        if not word:
            return
        if fds:
            pid = os.fork()
            if not pid:
                _be_keeper(fds[0], control, ours)
            os.close(fds[0])
        else:
            pid = int(word)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        control.send(b"%d" % pid)


def _be_keeper(fd: int, control: socket.socket, maker: int) -> None:
    """Serve one line, and end."""
    try:
        kernel.die_with_parent()
        if os.getppid() == maker:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, control.detach())
            os.close(nothing)
            with socket.socket(fileno=fd) as line:
                _serve(line)
    finally:
        os.kill(os.getpid(), signal.SIGKILL)  # it is a copy of who makes keepers: it must end here


def _serve(line: socket.socket) -> None:
    with line.makefile("rb") as stream:
        settings = parse_json(stream.readline())
        if not settings["ready"]:
            if plan := stream.readline():
                _say(line, run_program({**settings, **parse_json(plan)}, line.fileno()))
            return
        try:
            ready = WarmInterpreter(settings)
        except OSError as error:
            if stream.readline():
                _say(line, {"limit": "unready", "message": str(error)})
            return
        try:
            while plan := stream.readline():
                _say(line, handle_plan(ready, parse_json(plan), line.fileno()) | {"ends": ready.ended})
        finally:
            ready.close()


def _say(line: socket.socket, told: Mapping[str, Any]) -> None:
    with contextlib.suppress(ConnectionError):
        line.sendall(json.dumps(told).encode() + b"\n")
