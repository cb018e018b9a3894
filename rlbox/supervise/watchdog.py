"""The process above a supervisor that runs in place: it sees the supervisor die, ends the run and writes it down.

In a container the engine does this. The watchdog does nothing else, so that little can go wrong with it: it imports
what it needs for the end only then, hands signals on, and holds the lock of the data disk until nothing of the run is
left. When the watchdog itself is killed the supervisor goes on; when both are, the next command about runs does what is
left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from rlbox.system.command import ProcessHandle, start_command
from rlbox.system.libc import set_child_subreaper
from rlbox.system.run_processes import RunProcesses, StopSignal
from rlbox.values import Command

_LAST_BYTES = 2000
LOG_FILE = "supervisor.log"
_FORWARDED = (signal.SIGTERM, signal.SIGINT)


def run_supervisor_and_clean_up(run_dir: Path, lock_handle: int) -> int:
    """Start the supervisor of `run_dir`, wait for its end, see to what it left, and return its exit code.

    The supervisor inherits the open file `lock_handle`, which holds the data disk.
    """
    set_child_subreaper()
    signal.signal(signal.SIGHUP, lambda number, frame: None)  # SIG_IGN would be inherited
    processes = RunProcesses(run_dir, StopSignal())  # before there is a child: all that comes later is the run's
    argv = (sys.executable, "-m", "rlbox.supervise", str(run_dir), "--hold", str(lock_handle))
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)  # before there is somebody to hand them on to they wait
    supervisor = start_command(Command(argv=argv), stdin=None, pass_fds=(lock_handle,))  # it unblocks them itself
    _hand_on(supervisor)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # what comes over standard input is for the supervisor alone
    code = supervisor.wait()
    if code < 0 or processes.list_members():
        processes.stop_all_and_list_survivors()
    _settle(run_dir, code)
    return 128 - code if code < 0 else code


def _hand_on(supervisor: ProcessHandle) -> None:
    def hand_on(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            supervisor.send_signal(number)

    for number in _FORWARDED:
        signal.signal(number, hand_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)


def _settle(run_dir: Path, code: int) -> None:
    from rlbox.diagnose.cause import make_killed_or_ended_exit_info
    from rlbox.errors import RlboxError
    from rlbox.record.reconcile import write_final_state
    from rlbox.record.run_dir import load_plan_file
    from rlbox.system.tail import read_last_whole_lines

    with contextlib.suppress(OSError, RlboxError):  # a disk that is full or gone: the next command tries again
        said = read_last_whole_lines(run_dir / LOG_FILE, _LAST_BYTES).decode("utf-8", "replace")
        write_final_state(run_dir, load_plan_file(run_dir), make_killed_or_ended_exit_info(code, said))
