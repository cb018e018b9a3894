"""`python -m rlbox.supervise RUN_DIR`: carry out the plan of a run directory. Started by rlbox, not by people.

With `--watchdog` it starts another process that does, sees it die, ends the run and writes it down; in a container the
engine does this. When the watchdog itself is killed the supervisor goes on; when both are, the next command about runs
does what is left. `--hold N` hands over the held data disk as an open file; without it (in a container) the supervisor
takes the disk itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rlbox.errors import RlboxError
from rlbox.system.libc import forbid_ptrace, set_child_subreaper
from rlbox.system.run_processes import StopSignal

if TYPE_CHECKING:
    from rlbox.job.plan import RunPlan

_START_S = 30.0
"""How long the command line that started this process may still have the disk."""


def main(argv: list[str]) -> int:
    if argv[:1] == ["--watchdog"]:
        return _run_watchdog(Path(argv[1]), int(argv[3]))
    interrupt = StopSignal()
    interrupt.install_ignoring_hangup()  # before the slow imports, so that a signal is never met by the default
    if os.getpid() == 1:  # of a container; programs of a run in place are the user's own in any case
        forbid_ptrace()
    try:
        return _supervise(argv, interrupt)
    except RlboxError as error:
        _tell(f"error: {error}")
        return error.exit_code


def _supervise(argv: list[str], interrupt: StopSignal) -> int:
    from rlbox.record.run_dir import load_plan_file
    from rlbox.secrets.handover import SecretGrants, receive_secrets, unset_and_declare_secrets
    from rlbox.secrets.masks import SecretMasker
    from rlbox.supervise.supervisor import supervise_run

    run_dir = Path(argv[0]).resolve()
    plan = load_plan_file(run_dir)
    _begin(plan, run_dir, interrupt, inherited=len(argv) > 1)
    secrets = receive_secrets(plan.secrets, is_stopped=lambda: bool(interrupt.name))
    unset_and_declare_secrets(os.environ, secrets)
    return supervise_run(
        plan,
        run_dir,
        interrupt=interrupt,
        masks=SecretMasker({**os.environ, **secrets}),
        grants=SecretGrants(secrets, plan.aliases),
        on_event=_tell_event,
    )


def _begin(plan: RunPlan, run_dir: Path, interrupt: StopSignal, *, inherited: bool) -> None:
    """Take the data disk, unless it was inherited, and say who carries out the run.

    Raises `MachineError` when another start of this attempt did so before.
    """
    from rlbox.record.disk_lock import acquire_disk_lock
    from rlbox.record.run_dir import create_lock_owner_from_plan
    from rlbox.record.supervisor_file import describe_stop_requester, write_supervisor_info_refusing_second_start

    if not inherited:
        data = Path(plan.paths.data).resolve()
        acquire_disk_lock(data, create_lock_owner_from_plan(plan), _START_S)  # kept until this process ends
    with contextlib.suppress(OSError):  # a full disk is met, and told, where the state is written
        write_supervisor_info_refusing_second_start(
            run_dir,
            place=plan.place,
            container=plan.container,
            attempt=plan.attempt,
            watchdog_pid=os.getppid() if inherited else 0,
        )
    if describe_stop_requester(run_dir):
        interrupt.request_stop_keeping_first_reason("SIGTERM")


def _tell_event(event: Mapping[str, Any]) -> None:
    match event["event"]:
        case "run":
            _tell(f"run {event['state']}")
        case "stage":
            text = f"{event['stage']}: {event['state']}"
            _tell(f"{text}: {event['cause']}" if event.get("cause") else text)
        case "service":
            _tell(f"{event['stage']}: service {event['service']} {event['state']}")
        case "evidence-failed":
            _tell(f"evidence was not written: {event['why']}")
        case _:
            pass


def _tell(text: str) -> None:
    """Write one line, and what else a text has indented below it: each line at the margin is the supervisor's own."""
    with contextlib.suppress(OSError):  # the terminal is gone; the run goes on
        sys.stderr.write("rlbox: " + "\n  ".join(text.splitlines()) + "\n")
        sys.stderr.flush()


_LAST_BYTES = 2000
_FORWARDED = (signal.SIGTERM, signal.SIGINT)


def _run_watchdog(run_dir: Path, lock_handle: int) -> int:
    """Start the supervisor, which inherits the lock of the data disk, wait for its end, and return its exit code.

    What the end needs is imported only then, so that little can go wrong before.
    """
    from rlbox.system.command import start_command
    from rlbox.system.run_processes import RunProcesses
    from rlbox.values import Command

    set_child_subreaper()
    signal.signal(signal.SIGHUP, lambda number, frame: None)  # SIG_IGN would be inherited
    processes = RunProcesses(run_dir, StopSignal())  # before there is a child: all that comes later is the run's
    argv = (sys.executable, "-m", "rlbox.supervise", str(run_dir), "--hold", str(lock_handle))
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)  # before there is somebody to hand them on to they wait
    supervisor = start_command(Command(argv=argv), stdin=None, pass_fds=(lock_handle,))  # it unblocks them itself

    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            supervisor.send_signal(number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # what comes over standard input is for the supervisor alone
    code = supervisor.wait()
    if code < 0 or processes.list_living_members():
        processes.stop_all_and_list_survivors()
    _write_end_of_supervisor(run_dir, code)
    return 128 - code if code < 0 else code


def _write_end_of_supervisor(run_dir: Path, code: int) -> None:
    from rlbox.record.reconcile import ensure_final_state_matches_exit_info
    from rlbox.record.run_dir import load_plan_file
    from rlbox.record.supervisor_exit import make_killed_or_ended_exit_info
    from rlbox.record.supervisor_file import LOG_FILE
    from rlbox.system.tail import read_tail_lines_or_empty

    with contextlib.suppress(OSError, RlboxError):  # a disk that is full or gone: the next command tries again
        said = read_tail_lines_or_empty(run_dir / LOG_FILE, _LAST_BYTES).decode("utf-8", "replace")
        ensure_final_state_matches_exit_info(
            run_dir, load_plan_file(run_dir), make_killed_or_ended_exit_info(code, said)
        )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
