"""Programs that probes start: each in a session of its own, and ended with all it started when its time is over."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlbox.system.command import PIPE, communicate, start_command
from rlbox.system.counters import probe_process_usage
from rlbox.system.process_table import (
    Process,
    ProcessKey,
    find_by_environment,
    find_process_family,
    probe_processes,
    read_text,
)
from rlbox.values import Command

PROCESS_MARK = "RLBOX_DOCTOR"
_TAIL_S = 2.0
_LOOK_S = 0.01
_END_S = 1.0  # for what was killed to be gone: it gives its memory back first
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class ProgramResult:
    """What a program left behind. `exit_code` is negative for a signal; `was_idle` tells a hang from a busy machine.

    `exit_code` is None when the time was over; `was_idle` is true then if the program hardly calculated in the last two
    seconds although the machine had cores to spare.
    """

    exit_code: int | None
    stdout: str
    stderr: str
    was_idle: bool = False


class Program:
    """A running program; `communicate` or `kill` ends it with everything that it started."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: str, *, token: str) -> None:
        self._mark = {PROCESS_MARK: token}
        self._known: set[ProcessKey] = set()
        command = Command(argv=tuple(argv), env=self._mark, cwd=cwd)
        self._popen = start_command(command, environ=env, stdin=PIPE, stdout=PIPE, stderr=PIPE)

    def communicate(self, stdin: bytes, deadline: float) -> ProgramResult:
        """Give it `stdin` and return what it said until it ended, or until `deadline` (monotonic)."""
        idle = False
        said = self._talk(stdin, deadline - _TAIL_S)
        if said is None:
            before = self._spent()
            said = self._talk(b"", deadline)
            idle = said is None and _hangs(before, self._spent())
        code = None if said is None else self._popen.returncode
        self.kill()
        output, errors = said or self._popen.communicate()
        return ProgramResult(
            exit_code=code,
            stdout=output.decode("utf-8", "replace"),
            stderr=errors.decode("utf-8", "replace"),
            was_idle=idle,
        )

    def _talk(self, stdin: bytes, until: float) -> tuple[bytes, bytes] | None:
        return communicate(self._popen, stdin, max(until - time.monotonic(), 0.05))

    def _family(self) -> list[Process]:
        """Return what lives of all that it ever started, as far as that is known.

        What has lost its parent is known by session and mark, what was found once by its key: a process that was killed
        has neither parent nor mark for some time before it is gone.
        """
        table = probe_processes()
        known = {pid for pid, process in table.items() if process.key in self._known}
        ids = find_process_family(
            table, {self._popen.pid} | known | find_by_environment(table, self._mark)
        ) & table.keys() - {os.getpid()}
        found = [table[pid] for pid in ids]
        self._known |= {process.key for process in found}
        return [process for process in found if not process.has_ended]

    def kill(self) -> None:
        """End it with all that it started, or starts meanwhile, and wait until it is gone."""
        until = time.monotonic() + _END_S
        while (find_process_family := self._family()) and time.monotonic() < until:
            for process in find_process_family:
                with contextlib.suppress(OSError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(_LOOK_S)

    def _spent(self) -> tuple[float, float, float]:
        """Return seconds that the program and its children calculated, that all cores idled, and now."""
        found = (probe_process_usage(process.pid) for process in self._family())
        return sum(each.cpu_s for each in found if each), _idle_s(), time.monotonic()


def _hangs(before: tuple[float, float, float], after: tuple[float, float, float]) -> bool:
    spent, idled, passed = (late - early for early, late in zip(before, after, strict=True))
    return passed > 0 and spent < 0.1 * passed and idled > 0.5 * passed * (os.cpu_count() or 1)


def _idle_s() -> float:
    fields = read_text("/proc/stat").partition("\n")[0].split()
    return int(fields[4]) / _TICKS if len(fields) > 4 else 0.0
