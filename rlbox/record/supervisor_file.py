"""`supervisor.json`: which process carries out a run, so that any later one can tell whether it still lives.

What a run in place leaves when all that watched over it was killed is ended by the next command. A process is the run's
when it carries its marks or is in its control group, or when it is below such a one or in its session. Nothing is found
by name, and nothing that lies on the data disk names a process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

from rlbox.amounts import utc_now
from rlbox.errors import MachineError
from rlbox.i18n import _
from rlbox.record.state import parse_json_as
from rlbox.system.identity import BootIdentity, read_boot_identity
from rlbox.system.json_files import read_json_object_or_empty
from rlbox.system.process_table import probe_process, read_cmdline_or_empty
from rlbox.system.safe_files import create_file

SUPERVISOR_FILE = "supervisor.json"
STOP_FILE = "stop.json"
LOG_FILE = "supervisor.log"
SUPERVISOR_MODULE = "rlbox.supervise"
"""What a supervisor is started as, with its run directory as the next word."""


@dataclass(frozen=True, kw_only=True)
class SupervisorInfo:
    """The supervisor of a run; `pid` and `started` are those of its own process table (the container's, in one).

    `warden` (the watchdog) is 0 in a container, where the engine watches over it.
    """

    pid: int
    started: int
    boot_id: str
    init: int
    uid: int
    host: str
    place: str
    container: str = ""
    warden: int = 0
    attempt: int = 1
    begun_at: str = ""


def write_supervisor_info_refusing_second_start(
    run_dir: Path, *, place: str, container: str, attempt: int, watchdog_pid: int
) -> SupervisorInfo:
    """Write down that this process carries out the run; raises `OSError`, and `MachineError` when the attempt has begun
    before: its container was started again, or another supervisor was.
    """
    life, own = read_boot_identity(), probe_process(os.getpid())
    facts = SupervisorInfo(
        pid=os.getpid(),
        started=own.start_ticks if own else 0,
        boot_id=life.boot_id,
        init=life.init_start_ticks,
        uid=os.getuid(),
        host=life.host,
        place=place,
        container=container,
        warden=watchdog_pid,
        attempt=attempt,
        begun_at=utc_now(),
    )
    try:
        create_file(run_dir / SUPERVISOR_FILE, json.dumps(dataclasses.asdict(facts)).encode())
    except FileExistsError as error:
        raise MachineError(
            _(
                "attempt {attempt} of run {run_dir} has started before, and its leftover files would "
                "count for this start"
            ).format(attempt=attempt, run_dir=run_dir.name),
            where=str(run_dir / SUPERVISOR_FILE),
            next_step=_("take it up as a new attempt: rlbox run --resume {run_dir}").format(run_dir=run_dir.name),
        ) from error
    return facts


def load_supervisor_info(run_dir: Path) -> SupervisorInfo | None:
    return parse_json_as(SupervisorInfo, read_json_object_or_empty(run_dir / SUPERVISOR_FILE))


def is_same_boot(supervisor: SupervisorInfo, boot: BootIdentity) -> bool:
    return supervisor.boot_id == boot.boot_id and (
        bool(supervisor.container) or supervisor.init == boot.init_start_ticks
    )


def is_host_supervisor_alive(run_dir: Path, supervisor: SupervisorInfo) -> bool:
    """The file alone is not believed: the process must say itself that it carries out the run of this directory."""
    if supervisor.container or not is_same_boot(supervisor, read_boot_identity()):
        return False
    process = probe_process(supervisor.pid)
    if process is None or process.start_ticks != supervisor.started or process.is_zombie:
        return False
    return f"{SUPERVISOR_MODULE} {run_dir} " in f"{read_cmdline_or_empty(supervisor.pid)} "


def write_first_stop_request(run_dir: Path, user: str, via: str) -> None:
    """Write down who wants the run to stop, and by what; the first one is remembered. Raises `OSError`."""
    text = json.dumps({"user": user, "by": via, "at": utc_now()})
    with contextlib.suppress(FileExistsError):
        create_file(run_dir / STOP_FILE, text.encode("utf-8", "replace"))


def describe_stop_requester(run_dir: Path) -> str | None:
    data = read_json_object_or_empty(run_dir / STOP_FILE)
    return f"{data['by']} ({data['user']})" if {"by", "user"} <= data.keys() else None
