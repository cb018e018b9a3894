"""The process that keeps one request's programs: starts them behind walls, measures them, and ends all of it.

When the line to the server closes before that, all below it is ended; when it is killed, all below it is, too.
"""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlbox.sandbox import kernel
from rlbox.sandbox.folder import fill, read_files
from rlbox.sandbox.group import ProgramGroup
from rlbox.sandbox.limits import ProgramLimits, wall_s
from rlbox.sandbox.lines import ProgramLines
from rlbox.sandbox.root import PROGRAMS, SYSTEM, leave_namespaces, make_root
from rlbox.sandbox.strength import GROUP, NAMESPACES, Strength
from rlbox.sandbox.tree import Tree
from rlbox.sandbox.walls import ProgramStart, WallError, fork_program
from rlbox.sandbox.watch import LOOK_S, Poll, Watch
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


def keep(plan: Mapping[str, Any], control: int) -> dict[str, Any]:
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
        fill(place.folder, {name: base64.b64decode(text) for name, text in plan["files"].items()})
    except OSError as error:
        return {"limit": "start", "message": f"no folder could be made for a program: {error}"}
    with ProgramLines.drawn(plan["stdin"], plan["check"]) as lines:
        watch = Watch(limits, plan["cpu_s"], "" if place.root else str(place.folder), Tree(group=place.group))
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
    watch: Watch,
    lines: ProgramLines,
    programs: Sequence[int],
    strength: Strength,
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
    plan: Mapping[str, Any], limits: ProgramLimits, place: _Place, lines: ProgramLines, watch: Watch
) -> tuple[list[int], Strength, str]:
    """Start the programs; return their ids, the strength of their walls, and why one did not start, or nothing."""
    pids: list[int] = []
    strength = Strength.of((), place.lacks)
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
        except (WallError, OSError) as error:
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


def _wait(watch: Watch, first: int, lines: ProgramLines, control: int, deadline: float) -> None:
    """Wait until the first program has ended or a limit is passed."""
    poll, due = Poll(watch, lines, control), 0.0
    while first not in watch.ended and not watch.limit:
        poll.once(LOOK_S if poll.open_outputs else _LAST_S)
        watch.ended |= watch.tree.reap()
        due = poll.look(due, deadline)
