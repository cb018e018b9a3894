"""What a run in place leaves when all that watched over it was killed: found by what was written down, and ended.

A process is the run's when it carries its mark, when the supervisor had written it down (id and start), or when it is
below such a one or in its session. Nothing is found by name.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from pathlib import Path

from rlbox.files.act.folders import write_atomic
from rlbox.files.act.rows import read_table
from rlbox.machine.act.identity import probe_machine_life
from rlbox.machine.act.interrupt import Interrupt
from rlbox.machine.act.process_table import Process, probe_process
from rlbox.machine.act.processes import RunProcesses
from rlbox.record.act.supervisor_file import PROCESSES_FILE

_PAUSE_S = 5.0
_FIRST_S = 0.5


class ProcessRecord:
    """Writes down the processes of a run while it goes on, every few seconds: some hide the mark they were given."""

    def __init__(self, run_dir: Path, parts: Callable[[], dict[str, set[int]]]) -> None:
        self._path = run_dir / PROCESSES_FILE
        self._parts = parts
        self._written: list[tuple[int, int]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="process-record", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def close(self) -> None:
        """Write no more."""
        self._over.set()
        if self._thread.ident:
            self._thread.join()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _go_on(self) -> None:
        pause = _FIRST_S
        while not self._over.wait(pause):
            pause = min(2 * pause, _PAUSE_S)
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        pids = set().union(*self._parts().values())
        keys = sorted(process.key for pid in pids if (process := probe_process(pid)))
        if keys == self._written:
            return
        life = probe_machine_life()
        write_atomic(self._path, json.dumps({"boot_id": life.boot_id, "init": life.init, "processes": keys}))
        self._written = keys


def end_remains(run_dir: Path, run_id: str) -> tuple[Process, ...]:
    """End every process that the run `run_id` left on this machine; return those that even SIGKILL did not end."""
    return RunProcesses(run_id, Interrupt(), _recorded(run_dir)).stop_all()


def _recorded(run_dir: Path) -> tuple[tuple[int, int], ...]:
    """Return what was written down in this life of the machine; ids of another one mean other processes."""
    data, life = read_table(run_dir / PROCESSES_FILE), probe_machine_life()
    if (data.get("boot_id"), data.get("init")) != (life.boot_id, life.init):
        return ()
    return tuple((int(pid), int(started)) for pid, started in data.get("processes", ()))
