"""Start the processes of a run, and end them with everything they started, never by name.

A process belongs to the run when it is below one that the run started (orphans come back to the supervisor, which is
their subreaper), shares its session, or carries the run's marks in its environment. The tree is needed because programs
that set their title (Ray's workers, vLLM's engine) overwrite the environment that the kernel shows; the marks are
needed for what left the tree.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rlbox.system.command import ProcessHandle, start_command
from rlbox.system.libc import prctl, set_child_subreaper
from rlbox.system.process_table import (
    Process,
    ProcessKey,
    find_by_environment,
    find_self_and_ancestors,
    find_tree_and_led_sessions,
    probe_process,
    probe_processes,
)
from rlbox.system.stop_signal import StopSignal
from rlbox.values import Command

RUN_MARK = "RLBOX_RUN"
FOLDER_MARK = "RLBOX_RUN_DIR"
STAGE_MARK = "RLBOX_STAGE"
PART_MARK = "RLBOX_PART"

GRACE_S = 10.0
"""Time between SIGTERM and SIGKILL."""

_LEAD_S = 3.0
"""How long the process that was started may end its own children in order, before they are told one by one.

Measured with Ray 2.60: a head that gets SIGTERM together with its raylet drains for 30 s, alone it is gone in 1 s.
"""

_KILL_S = 5.0
_LOOK_S = 0.05
_SET_DUMPABLE = 4

INIT_PID = 1
"""The id of a container's own process: the kernel lets no process of the container kill or stop it."""


def become_subreaper() -> None:
    """Have orphans below this process handed to it instead of to process 1 (Linux; elsewhere nothing happens)."""
    with contextlib.suppress(OSError, AttributeError):
        set_child_subreaper()


def forbid_ptrace() -> None:
    """Keep other processes of this user out of this one: none can trace it, or open what it has open (Linux).

    Those with CAP_SYS_PTRACE still can. Source: prctl(2), PR_SET_DUMPABLE; ptrace(2), access mode checking.
    """
    with contextlib.suppress(OSError, AttributeError):
        prctl("guard memory", _SET_DUMPABLE, 0)


class ChildProcess:
    def __init__(self, popen: ProcessHandle, stage: str, part: str) -> None:
        self._popen = popen
        self._born = probe_process(popen.pid)
        self.pid = popen.pid
        self.stage = stage
        self.part = part

    def poll(self) -> int | None:
        """Return how it ended (negative for a signal), or None while it runs."""
        return self._popen.poll()

    def _list_pid_unless_reused(self, table: Mapping[int, Process]) -> set[int]:
        """Return its id, or nothing once the id was given to another process: then its session is empty too."""
        now = table.get(self.pid)
        return set() if now and self._born and now.start_ticks != self._born.start_ticks else {self.pid}


class RunProcesses:
    """All processes of one run.

    They carry the name of the run and the place of its directory: a directory of the same name, which anybody can make
    on another disk, has none of them.
    """

    def __init__(self, run_dir: Path, interrupt: StopSignal) -> None:
        self._marks = {RUN_MARK: run_dir.name, FOLDER_MARK: str(run_dir)}
        self._interrupt = interrupt
        self._children: list[ChildProcess] = []
        self._zombies: set[ProcessKey] = set()
        table = probe_processes()
        self._strangers = {p.key for p in table.values() if p.parent_pid == os.getpid()}

    def make_marks(self, stage: str) -> dict[str, str]:
        return {**self._marks, STAGE_MARK: stage}

    def start(self, command: Command, output: int, *, stage: str, part: str) -> ChildProcess:
        """Start `command` in a session of its own, both kinds of output going to the handle `output`.

        Raises
        ------
        OSError
            The program is missing or not executable.
        """
        marks = {**self.make_marks(stage), PART_MARK: part}
        # a program whose output is no terminal holds lines back, and the gate would see them late
        command = replace(command, env={"PYTHONUNBUFFERED": "1", **command.env, **marks})
        popen = start_command(command, stdout=output, stderr=output)
        child = ChildProcess(popen, stage, part)
        self._children.append(child)
        return child

    def stop(self, child: ChildProcess) -> None:
        """End one child and everything it started: SIGTERM (it first), `GRACE_S`, SIGKILL."""
        self._end(lambda table: self._of(table, child), leader=child)

    def stop_all_and_list_survivors(self, spared: Sequence[ChildProcess] = ()) -> tuple[Process, ...]:
        """End every process of the run but `spared` and what these started.

        Return those that even SIGKILL did not end (blocked in the kernel).
        """
        return self._end(lambda table: self._members(table).difference(*(self._of(table, c) for c in spared)))

    def list_members(self) -> tuple[Process, ...]:
        table = probe_processes()
        return self._alive(table, self._members(table))

    def list_tree_pids(self) -> set[int]:
        """Return the ids of the run's processes by the tree alone, which is cheap; nothing is collected."""
        table = probe_processes()
        return find_tree_and_led_sessions(table, self._own(table)) & table.keys()

    def list_child_tree_pids(self, child: ChildProcess) -> set[int]:
        """Return the ids of one child and of what it started, by the tree alone, which is cheap."""
        table = probe_processes()
        return find_tree_and_led_sessions(table, child._list_pid_unless_reused(table)) & table.keys()

    def list_pids_by_part(self) -> dict[str, set[int]]:
        """Return the ids of the run's processes by part, `other` for orphans; by the tree alone, which is cheap.

        Orphans that have ended since an earlier look are collected.
        """
        table = probe_processes()
        self._collect(table)
        living = [child for child in tuple(self._children) if child.pid in table]
        found = {
            child.part: find_tree_and_led_sessions(table, child._list_pid_unless_reused(table)) & table.keys()
            for child in living
        }
        other = (find_tree_and_led_sessions(table, self._own(table)) & table.keys()).difference(*found.values())
        return {part: pids for part, pids in {**found, "other": other}.items() if pids}

    def reap_orphans(self) -> None:
        """Collect the orphans that ended, so that they do not stay as zombies."""
        own = {child.pid for child in self._children}
        for child in self._children:
            child.poll()
        for process in probe_processes().values():
            if (
                process.parent_pid == os.getpid()
                and process.is_zombie
                and process.pid not in own
                and not self._stranger(process)
            ):
                _reap(process.pid)

    def _collect(self, table: dict[int, Process]) -> None:
        """Reap the orphans that were zombies at the look before, too: no thread of ours waits that long for its own."""
        own = {child.pid for child in self._children}
        zombies = {p.key for p in table.values() if p.parent_pid == os.getpid() and p.is_zombie and p.pid not in own}
        for pid, _ in (zombies & self._zombies) - self._strangers:
            _reap(pid)
        self._zombies = zombies

    def _members(self, table: dict[int, Process]) -> set[int]:
        return find_tree_and_led_sessions(table, self._own(table) | find_by_environment(table, self._marks))

    def _of(self, table: dict[int, Process], child: ChildProcess) -> set[int]:
        marks = {**self.make_marks(child.stage), PART_MARK: child.part}
        return find_tree_and_led_sessions(table, child._list_pid_unless_reused(table)) | find_by_environment(
            table, marks
        )

    def _own(self, table: dict[int, Process]) -> set[int]:
        """Return the ids of what has this process as its parent: what it started, and the orphans that came to it."""
        return {p.pid for p in table.values() if p.parent_pid == os.getpid() and not self._stranger(p)}

    def _stranger(self, process: Process) -> bool:
        return process.key in self._strangers

    def _alive(self, table: dict[int, Process], pids: set[int]) -> tuple[Process, ...]:
        spared = find_self_and_ancestors(table, os.getpid())
        return tuple(table[pid] for pid in sorted(pids - spared) if pid in table and not table[pid].is_zombie)

    def _end(
        self, choose: Callable[[dict[int, Process]], set[int]], leader: ChildProcess | None = None
    ) -> tuple[Process, ...]:
        begun = time.monotonic()
        told: set[ProcessKey] = set()
        while True:
            self.reap_orphans()
            table = probe_processes()
            alive = self._alive(table, choose(table))
            now = time.monotonic()
            deadline = self._interrupt.cap_deadline(begun + GRACE_S)
            if not alive or now > deadline + _KILL_S:
                return alive
            leading = leader is not None and leader.poll() is None and now < begun + _LEAD_S
            for process in alive:
                if now > deadline:
                    _signal(process, signal.SIGKILL)
                elif process.key not in told and (not leading or (leader and process.pid == leader.pid)):
                    told.add(process.key)
                    _signal(process, signal.SIGTERM)
            time.sleep(_LOOK_S)


def _signal(process: Process, number: signal.Signals) -> None:
    now = probe_process(process.pid)
    if now is None or now.start_ticks != process.start_ticks:
        return
    try:
        os.kill(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
