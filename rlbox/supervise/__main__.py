"""`python -m rlbox.supervise RUN_DIR`: carry out the plan of a run directory. Started by rlbox, not by people.

With `--watchdog` it watches over another process that does (`watchdog.py`). `--hold N` hands over the held data disk as
an open file; without it (in a container) the supervisor takes the disk itself.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlbox.errors import RlboxError, SpecError
from rlbox.i18n import _
from rlbox.system.libc import forbid_ptrace
from rlbox.system.run_processes import StopSignal

if TYPE_CHECKING:
    from rlbox.job.plan import RunPlan

_START_S = 30.0
"""How long the command line that started this process may still have the disk."""


def main(argv: list[str]) -> int:
    if argv[:1] == ["--watchdog"]:
        from rlbox.supervise.watchdog import run_supervisor_and_clean_up

        return run_supervisor_and_clean_up(Path(argv[1]), int(argv[3]))
    interrupt = StopSignal()
    interrupt.install()  # before the slow imports, so that a signal is never met by the default
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

    if not argv or argv[1:2] not in ([], ["--hold"]):
        raise SpecError(_("supervise takes one run directory"))
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

    Raises `NodeError` when another start of this attempt did so before.
    """
    from rlbox.record.disk_lock import acquire_disk_lock
    from rlbox.record.run_dir import create_lock_owner_from_plan
    from rlbox.record.supervisor_file import read_stop_requester, write_supervisor_info_once

    if not inherited:
        data = Path(plan.paths.data).resolve()
        acquire_disk_lock(data, create_lock_owner_from_plan(plan), _START_S)  # kept until this process ends
    with contextlib.suppress(OSError):  # a full disk is met, and told, where the state is written
        write_supervisor_info_once(
            run_dir,
            place=plan.place,
            container=plan.container,
            attempt=plan.attempt,
            watchdog_pid=os.getppid() if inherited else 0,
        )
    if read_stop_requester(run_dir):
        interrupt.request("SIGTERM")


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


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
