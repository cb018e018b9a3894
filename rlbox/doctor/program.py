"""Programs that probes start: each in a session of its own, and ended with all it started when its time is over."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rlbox.system.command import PIPE, communicate_or_leave_running, start_command
from rlbox.system.process_table import (
    Process,
    ProcessKey,
    find_own_pids_by_env,
    find_tree_session_and_group_pids,
    probe_processes,
)
from rlbox.values import Command

PROCESS_MARK = "RLBOX_DOCTOR"
_LOOK_S = 0.01
_END_S = 1.0  # for what was killed to be gone: it gives its memory back first


class ProgramResult(NamedTuple):
    """What a program left behind. `exit_code` is negative for a signal, None when the time was over."""

    exit_code: int | None
    stdout: str
    stderr: str


class RunningProgram:
    """A running program; each of its methods ends it with everything that it started."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
        self._mark = {PROCESS_MARK: uuid.uuid4().hex}
        self._known: set[ProcessKey] = set()
        command = Command(argv=tuple(argv), env=self._mark, cwd=cwd)
        self._popen = start_command(command, base_env=env, stdin=PIPE, stdout=PIPE, stderr=PIPE)

    def read_output_and_kill_all(self, monotonic_deadline: float) -> ProgramResult:
        output = communicate_or_leave_running(self._popen, b"", max(monotonic_deadline - time.monotonic(), 0.05))
        code = None if output is None else self._popen.returncode
        self.kill_with_descendants()
        stdout, stderr = (text.decode("utf-8", "replace") for text in output or self._popen.communicate())
        return ProgramResult(code, stdout, stderr)

    def kill_with_descendants(self) -> None:
        """End it with all that it started, or starts meanwhile, and wait until it is gone."""
        until = time.monotonic() + _END_S
        while (living := self._find_living()) and time.monotonic() < until:
            for process in living:
                with contextlib.suppress(OSError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(_LOOK_S)

    def _find_living(self) -> list[Process]:
        """Return what lives of all that it ever started, as far as that is known.

        What has lost its parent is known by session and mark, what was found once by its key: a process that was killed
        has neither parent nor mark for some time before it is gone.
        """
        table = probe_processes()
        known = {pid for pid, process in table.items() if process.key in self._known}
        roots = {self._popen.pid} | known | find_own_pids_by_env(table, self._mark)
        found = [table[pid] for pid in (find_tree_session_and_group_pids(table, roots) & table.keys()) - {os.getpid()}]
        self._known |= {process.key for process in found}
        return [process for process in found if not process.is_zombie]
