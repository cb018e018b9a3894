"""`supervisor.json`: which process carries out a run, so that any later one can tell whether it still lives."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

from rlbox.files.act.folders import write_atomic
from rlbox.files.act.rows import read_table
from rlbox.machine.act.clock import utc_now
from rlbox.machine.act.identity import MachineLife, probe_machine_life
from rlbox.machine.act.process_table import probe_process

SUPERVISOR_FILE = "supervisor.json"
STOP_FILE = "stop.json"
PROCESSES_FILE = "processes.json"


@dataclass(frozen=True, kw_only=True)
class SupervisorFacts:
    """The supervisor of a run; `pid` and `started` are those of its own process table (the container's, in one).

    `warden` is 0 in a container, where the engine watches over it.
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


def write_supervisor(run_dir: Path, *, place: str, container: str, attempt: int, warden: int) -> SupervisorFacts:
    """Write down that this process carries out the run.

    Raises
    ------
    OSError
        The disk is full or gone.
    """
    life, own = probe_machine_life(), probe_process(os.getpid())
    facts = SupervisorFacts(
        pid=os.getpid(),
        started=own.started if own else 0,
        boot_id=life.boot_id,
        init=life.init,
        uid=os.getuid(),
        host=life.host,
        place=place,
        container=container,
        warden=warden,
        attempt=attempt,
        begun_at=utc_now(),
    )
    write_atomic(run_dir / SUPERVISOR_FILE, json.dumps(dataclasses.asdict(facts)))
    return facts


def load_supervisor(run_dir: Path) -> SupervisorFacts | None:
    """Return what the supervisor wrote of itself; None when there is nothing, or nothing readable."""
    known = {field.name for field in dataclasses.fields(SupervisorFacts)}
    data = {key: value for key, value in read_table(run_dir / SUPERVISOR_FILE).items() if key in known}
    try:
        return SupervisorFacts(**data)
    except TypeError:
        return None


def same_life(facts: SupervisorFacts, life: MachineLife) -> bool:
    """Whether the machine (or the container that rlbox runs in) has not been restarted since."""
    return facts.boot_id == life.boot_id and (bool(facts.container) or facts.init == life.init)


def supervisor_lives(facts: SupervisorFacts) -> bool:
    """Whether a supervisor that runs in place is still there as the same process."""
    if facts.container or not same_life(facts, probe_machine_life()):
        return False
    process = probe_process(facts.pid)
    return process is not None and process.started == facts.started and not process.gone


def ask_to_stop(run_dir: Path, user: str, by: str) -> None:
    """Write down who wants the run to stop, and by what; the first one is remembered.

    Raises
    ------
    OSError
        The run directory cannot be written.
    """
    text = json.dumps({"user": user, "by": by, "at": utc_now()})
    try:
        handle = os.open(run_dir / STOP_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return
    try:
        os.write(handle, text.encode("utf-8", "replace"))
    finally:
        os.close(handle)


def stop_asked(run_dir: Path) -> str:
    """Return who asked the run to stop, and how, in a few words; empty when nobody did."""
    data = read_table(run_dir / STOP_FILE)
    return f"{data['by']} ({data['user']})" if {"by", "user"} <= data.keys() else ""
