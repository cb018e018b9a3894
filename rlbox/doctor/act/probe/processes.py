"""List the processes of this container or machine with what tells whether a living run owns them."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from rlbox.doctor.judge.processes import Running
from rlbox.machine.act.process_table import (
    ancestors,
    descendants,
    owner_of,
    probe_command_line,
    probe_processes,
    read_text,
)
from rlbox.values import VENV

_SUPERVISOR = re.compile(r"-m rlbox\.supervise (?:--warden )?(\S+)")
# The id that container engines name their control groups after.
_CONTAINER = re.compile(r"\b([0-9a-f]{64})\b")
_TICKS = os.sysconf("SC_CLK_TCK")


def probe_running(stack: str = VENV) -> tuple[Running, ...]:
    """Return every process that shares this one's control group: those of containers are not a host's business.

    Parameters
    ----------
    stack
        Folder of the stack's environment: its interpreter is known by that path.
    """
    table = probe_processes()
    me = os.getpid()
    mine = ancestors(table, me) | descendants(table, {me})
    words = {pid: probe_command_line(pid) for pid in table}
    supervisors = {pid: Path(found.group(1)).name for pid in table if (found := _SUPERVISOR.search(words[pid]))}
    owned = supervisors.keys() | descendants(table, set(supervisors))
    group, up_s = _group(me), time.clock_gettime(time.CLOCK_BOOTTIME)
    main = min((p.pid for p in table.values() if p.parent == 1), default=0)
    return tuple(
        Running(
            pid=process.pid,
            name=process.name,
            words=words[process.pid],
            owner=f"user {owner_of(process.pid) or 'unknown'}",
            age_s=max(up_s - process.started / _TICKS, 0.0),
            own=process.pid in mine,
            busy_run=process.pid in owned,
            run=supervisors.get(process.pid, ""),
            orphan=process.parent == 1 and process.pid != main,
            zombie=process.gone,
            stack=words[process.pid].startswith(f"{stack}/"),
        )
        for process in table.values()
        if (process.pid != 1 or process.pid in supervisors) and _group(process.pid) in ("", group)
    )


def _group(pid: int) -> str:
    """Return the id of the container that a process is in, empty for none."""
    found = _CONTAINER.search(read_text(f"/proc/{pid}/cgroup"))
    return found.group(1) if found else ""
