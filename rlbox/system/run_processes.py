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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from rlbox.system.command import ProcessHandle, start_command
from rlbox.system.process_table import (
    Process,
    ProcessKey,
    find_own_pids_by_env,
    find_self_and_ancestors,
    find_tree_session_and_group_pids,
    probe_process,
    probe_processes,
)
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


STOP_GRACE_S = 6.0
"""Grace of all processes together once the user asked to stop, well under the 10 s of `docker stop`."""


class StopSignal:
    """Remembers the first SIGTERM or SIGINT; a hang-up of the terminal is no reason to stop."""

    def __init__(self) -> None:
        self.name = ""
        self._at = 0.0

    def install_ignoring_hangup(self) -> None:
        """Take over the signals of this process, also those that wait; those it starts get the defaults back."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)
        signal.signal(signal.SIGHUP, _stay)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM, signal.SIGINT])

    def request_stop_keeping_first_reason(self, signal_name: str) -> None:
        """Stop for `signal_name`, as if its signal had come; the first reason stays."""
        if not self.name:
            self._at = time.monotonic()
            self.name = signal_name

    def cap_deadline_if_stopping(self, planned_monotonic_s: float) -> float:
        """Return the time (monotonic) until which to be patient: `planned_monotonic_s`, or sooner once asked to."""
        return min(planned_monotonic_s, self._at + STOP_GRACE_S) if self.name else planned_monotonic_s

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.request_stop_keeping_first_reason(signal.Signals(number).name)


def _stay(number: int, frame: FrameType | None) -> None:
    """Do nothing. SIG_IGN would be inherited by every process of the run."""


@contextlib.contextmanager
def handle_sigint_and_sigterm(on_signal: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


class ChildProcess:
    def __init__(self, popen: ProcessHandle, stage: str, part: str) -> None:
        self._popen = popen
        self._born = probe_process(popen.pid)
        self.pid = popen.pid
        self.stage = stage
        self.part = part

    def poll(self) -> int | None:
        return self._popen.poll()

    def find_tree_and_session_pids(self, table: Mapping[int, Process]) -> set[int]:
        now = table.get(self.pid)
        is_reused = now and self._born and now.start_ticks != self._born.start_ticks
        # of an id that was given to another process the session is empty, too
        return set() if is_reused else find_tree_session_and_group_pids(table, {self.pid})


class RunProcesses:
    """All processes of one run, marked with its directory: one of the same name on another disk has none of them."""

    def __init__(self, run_dir: Path, interrupt: StopSignal) -> None:
        self._marks = {RUN_MARK: run_dir.name, FOLDER_MARK: str(run_dir)}
        self._interrupt = interrupt
        self._children: list[ChildProcess] = []
        self._zombies: set[ProcessKey] = set()
        table = probe_processes()
        self._strangers = {p.key for p in table.values() if p.parent_pid == os.getpid()}

    def make_env_marks(self, stage: str) -> dict[str, str]:
        return {**self._marks, STAGE_MARK: stage}

    def start(self, command: Command, output_fd: int, *, stage: str, part: str) -> ChildProcess:
        """Start `command` in a session of its own, both kinds of output going to the handle `output_fd`."""
        marks = {**self.make_env_marks(stage), PART_MARK: part}
        # a program whose output is no terminal holds lines back, and the gate would see them late
        command = replace(command, env={"PYTHONUNBUFFERED": "1", **command.env, **marks})
        child = ChildProcess(start_command(command, stdout=output_fd, stderr=output_fd), stage, part)
        self._children.append(child)
        return child

    def stop(self, child: ChildProcess) -> None:
        """End one child and everything it started: SIGTERM (it first), `GRACE_S`, SIGKILL."""
        self._end(lambda table: self._find_child_members(table, child), leader=child)

    def stop_all_and_list_survivors(self, spared: Sequence[ChildProcess] = ()) -> tuple[Process, ...]:
        """End all but `spared` and what these started; survivors of SIGKILL are blocked in the kernel."""
        return self._end(
            lambda table: self._find_members(table).difference(*(self._find_child_members(table, c) for c in spared))
        )

    def list_living_members(self) -> tuple[Process, ...]:
        table = probe_processes()
        return _select_living(table, self._find_members(table))

    def list_tree_and_session_pids(self, child: ChildProcess) -> set[int]:
        table = probe_processes()
        return child.find_tree_and_session_pids(table) & table.keys()

    def reap_orphans_and_list_pids_by_part(self) -> dict[str, set[int]]:
        """Return the ids by part, `other` for orphans, by the tree alone, which is cheap; reap orphans that ended."""
        table = probe_processes()
        self._reap_orphans(table)
        parts = {
            c.part: c.find_tree_and_session_pids(table) & table.keys() for c in tuple(self._children) if c.pid in table
        }
        parts["other"] = (self._find_own_trees(table) & table.keys()).difference(*parts.values())
        return {part: pids for part, pids in parts.items() if pids}

    def _reap_orphans(self, table: dict[int, Process]) -> None:
        """Reap the orphans that were zombies at the look before, too: no thread of ours waits that long for its own."""
        own = {child.pid for child in self._children}
        zombies = {p.key for p in table.values() if p.parent_pid == os.getpid() and p.is_zombie and p.pid not in own}
        for pid, _ in (zombies & self._zombies) - self._strangers:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._zombies = zombies

    def _find_own_trees(self, table: dict[int, Process]) -> set[int]:
        own = {p.pid for p in table.values() if p.parent_pid == os.getpid() and p.key not in self._strangers}
        return find_tree_session_and_group_pids(table, own)

    def _find_members(self, table: dict[int, Process]) -> set[int]:
        marked = find_own_pids_by_env(table, self._marks)
        return find_tree_session_and_group_pids(table, self._find_own_trees(table) | marked)

    def _find_child_members(self, table: dict[int, Process], child: ChildProcess) -> set[int]:
        marks = {**self.make_env_marks(child.stage), PART_MARK: child.part}
        return child.find_tree_and_session_pids(table) | find_own_pids_by_env(table, marks)

    def _end(
        self, choose: Callable[[dict[int, Process]], set[int]], leader: ChildProcess | None = None
    ) -> tuple[Process, ...]:
        begun = time.monotonic()
        told: set[ProcessKey] = set()
        while True:
            for child in self._children:
                child.poll()
            table = probe_processes()
            self._reap_orphans(table)
            living = _select_living(table, choose(table))
            now = time.monotonic()
            deadline = self._interrupt.cap_deadline_if_stopping(begun + GRACE_S)
            if not living or now > deadline + _KILL_S:
                return living
            leading = leader is not None and leader.poll() is None and now < begun + _LEAD_S
            for process in living:
                if now > deadline:
                    _send_signal(process, signal.SIGKILL)
                elif process.key not in told and (not leading or (leader and process.pid == leader.pid)):
                    told.add(process.key)
                    _send_signal(process, signal.SIGTERM)
            time.sleep(_LOOK_S)


def _select_living(table: dict[int, Process], pids: set[int]) -> tuple[Process, ...]:
    spared = find_self_and_ancestors(table, os.getpid())
    return tuple(table[pid] for pid in sorted(pids - spared) if pid in table and not table[pid].is_zombie)


def _send_signal(process: Process, number: signal.Signals) -> None:
    now = probe_process(process.pid)
    if now and now.key == process.key:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)
