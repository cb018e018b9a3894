"""Carry out one request in what is ready: its programs are started, heard and measured, and all of it ends."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.sandbox.folder import read_files
from rlbox.sandbox.keeper import outcome
from rlbox.sandbox.limits import ProgramLimits, wall_s
from rlbox.sandbox.lines import ProgramLines
from rlbox.sandbox.ready import ReadyPython, RunningPrograms, inside
from rlbox.sandbox.strength import Strength
from rlbox.sandbox.tree import Tree
from rlbox.sandbox.watch import LOOK_S, Poll, Watch

_LONGEST = 1 << 13
_ENDED = "the process of the program ended before it began"


def carry_out(ready: ReadyPython, plan: Mapping[str, Any], control: int) -> dict[str, Any]:
    """Carry out a plan in what is ready; return what a keeper's `keep` returns. `control` is the line to the server."""
    limits, began = ProgramLimits.from_json(plan["limits"]), time.monotonic()
    with ProgramLines.drawn(plan["stdin"], plan["check"]) as lines:
        programs = range(len(plan["programs"]))
        try:
            request = ready.begin(plan, limits, [lines.of_program(number) for number in programs])
        except OSError as error:
            return {"limit": "start", "message": f"a program could not be started: {error}"}
        lines.close_given()
        watch = Watch(limits, plan["cpu_s"], "", Tree(group=ready.group, top=ready.pid))
        report = _Report(ready.report, watch, dict(ready.lacks))
        try:
            _wait(watch, lines, request, report, control, began)
            _end(ready, watch)
            report.hear_the_rest()
            strength = Strength.of(set(ready.layers) - set(report.lacks), report.lacks)
            left = _left(request, plan, limits) if not report.message else {}
            return outcome(
                plan, watch, lines, programs, strength, began, left=left, message=report.message, alive=False
            )
        finally:
            request.close()
            for fd in watch.listeners:
                os.close(fd)


def _wait(
    watch: Watch, lines: ProgramLines, request: RunningPrograms, report: _Report, control: int, began: float
) -> None:
    """Wait until the first program has ended or a limit is passed."""
    over: list[bool] = []
    others = {report.line.fileno(): report.hear, request.ended: lambda: over.append(True)}
    poll, due = Poll(watch, lines, control, others), began + LOOK_S
    report.listens = poll.add
    while not over and not watch.limit:
        poll.once(LOOK_S)
        due = poll.look(due, began + wall_s(watch.cpu_s))


def _end(ready: ReadyPython, watch: Watch) -> None:
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
    watch: Watch
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
