"""What is measured while programs run, against their limits."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlbox.sandbox import kernel
from rlbox.sandbox.limits import ProgramLimits
from rlbox.sandbox.lines import ProgramLines
from rlbox.sandbox.process_tree import ProcessTree
from rlbox.sandbox.scratch import measure_bytes

LOOK_S = 0.02
"""Seconds between two looks."""
_WEIGH_S = 0.1


@dataclass
class ProgramMonitor:
    """The programs of a request and what they take; `limit` names the first limit that they passed.

    `folder` is weighed where nothing else bounds it. `ended` has the exit codes of children, by process.
    """

    limits: ProgramLimits
    cpu_s: float
    folder: str
    tree: ProcessTree = field(default_factory=ProcessTree)
    listeners: list[int] = field(default_factory=list)
    ended: dict[int, int] = field(default_factory=dict)
    limit: str = ""
    _births: int = 0
    _looked: float = 0.0
    _weighed: float = 0.0

    def look(self, *, full: bool = False) -> None:
        """Measure; `full` says that an output is above its limit."""
        tree, memory = self.tree, self.limits.memory_mb << 20
        tree.look()
        self._births, self._looked = 0, time.monotonic()
        passed = {
            "cpu": tree.cpu_s > self.cpu_s,
            "sleep": tree.idle_s > self.cpu_s,
            "tasks": tree.tasks > 2 * self.limits.tasks,  # only where births are not asked for
            "memory": tree.memory_bytes(memory) > memory or bool(tree.group and tree.group.starved()),
            "output": full,
            "disk": bool(self.folder) and self._too_heavy(),
        }
        self.limit = self.limit or next((name for name, over in passed.items() if over), "")

    def _too_heavy(self) -> bool:
        now, limit = time.monotonic(), self.limits.disk_mb << 20
        if now - self._weighed < _WEIGH_S:
            return False
        self._weighed = now
        return measure_bytes(Path(self.folder), limit) > limit

    def born(self, listener: int) -> None:
        """Answer one that wants to be born: there is room, or there is none."""
        with contextlib.suppress(OSError):
            asked = kernel.next_fork(listener)
            if not self._room() and time.monotonic() - self._looked > LOOK_S / 2:
                self.look()
            room = self._room() and not self.limit
            self._births += room
            kernel.answer_fork(listener, asked, allowed=room)

    def _room(self) -> bool:
        return self.tree.tasks + self._births < self.limits.tasks


class Poller:
    """What a keeper hears while programs run: their outputs, births that are asked for, the server, its own lines."""

    def __init__(
        self,
        watch: ProgramMonitor,
        lines: ProgramLines,
        control: int,
        others: Mapping[int, Callable[[], None]] | None = None,
    ) -> None:
        self._watch, self._lines, self._control = watch, lines, control
        self._others = others or {}
        self._poll = select.poll()
        self.open_outputs = set(lines.outputs)
        for fd in (control, lines.word, *lines.outputs, *watch.listeners, *self._others):
            if fd >= 0:
                self.add(fd)

    def add(self, fd: int) -> None:
        """Hear this one, too."""
        self._poll.register(fd, select.POLLIN)

    def once(self, wait_s: float) -> None:
        """Do what has come, or wait so long for it."""
        watch = self._watch
        for fd, event in self._poll.poll(wait_s * 1000):
            if fd in watch.listeners:
                watch.born(fd) if event & select.POLLIN else self._poll.unregister(fd)
            elif fd == self._control:
                watch.limit = "cancelled"
            elif act := self._others.get(fd):
                act()
            elif not self._lines.take(fd, watch.limits.output):
                self._poll.unregister(fd)
                self.open_outputs.discard(fd)

    def look(self, due: float, deadline: float) -> float:
        """Measure if that is due; return when it is due again."""
        now = time.monotonic()
        if now >= due:
            self._watch.look(full=self._lines.full)
            due = time.monotonic() + LOOK_S
        if now > deadline:
            self._watch.limit = self._watch.limit or "wall"
        return due
