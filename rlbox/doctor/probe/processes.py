"""List the processes of this container or machine with what tells whether a living run owns them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from rlbox.doctor.judge.processes import Running, is_of_a_run
from rlbox.system.process_table import (
    Process,
    ancestors,
    descendants,
    environment_of,
    owner_of,
    probe_command_line,
    probe_processes,
    read_text,
)
from rlbox.system.processes import FOLDER_MARK
from rlbox.values import VENV

_SUPERVISOR = re.compile(r"\0-m\0rlbox\.supervise\0(?:--warden\0)?([^\0]+)")
# The id that container engines name their control groups after.
_CONTAINER = re.compile(r"\b([0-9a-f]{64})\b")
_REAPERS = ("systemd", "init", "tini", "docker-init", "dumb-init", "catatonit", "containerd-shim", "conmon")
"""Who takes over what has lost its parent, beside the first process: a program below them alone is an orphan."""
_TICKS = os.sysconf("SC_CLK_TCK")


def probe_running(stack: str = VENV) -> tuple[Running, ...]:
    """Return every process that shares this one's control group and process numbers.

    Those of containers, and of machines in namespaces, are not a host's business: their numbers are others there.

    Parameters
    ----------
    stack
        Folder of the stack's environment: its interpreter is known by that path.
    """
    everything = probe_processes()
    me, up_s = os.getpid(), time.clock_gettime(time.CLOCK_BOOTTIME)
    home = _home(me)
    table = {pid: process for pid, process in everything.items() if _home(pid) == home}
    mine = ancestors(everything, me) | descendants(everything, {me})
    words = {pid: probe_command_line(pid) for pid in table}
    supervisors = {pid: folder for pid in table if (folder := _supervised(pid))}
    owned = supervisors.keys() | descendants(table, set(supervisors))
    first = min((p for p in table.values() if p.parent == 1), key=lambda p: p.started, default=None)  # ids wrap round
    main = first.pid if first else 0
    user = owner_of(me)

    def running(process: Process) -> Running:
        pid = process.pid
        folder = environment_of(pid).get(FOLDER_MARK, "")
        owner = owner_of(pid)
        return Running(
            pid=pid,
            name=process.name,
            words=words[pid],
            owner=f"user {owner or 'unknown'}",
            age_s=max(up_s - process.started / _TICKS, 0.0),
            mine=owner == user,
            own=pid in mine,
            busy_run=pid in owned or folder in supervisors.values(),
            run=Path(supervisors[pid]).name if pid in supervisors else "",
            left_by=Path(folder).name if folder and folder not in supervisors.values() else "",
            started_by="container" if pid == main else _living_above(table, words, process, stack),
            orphan=pid != main and _reaps(table, process.parent),
            zombie=process.gone,
            stack=words[pid].startswith(f"{stack}/"),
        )

    return tuple(running(one) for pid, one in table.items() if pid != 1 or pid in supervisors)


def _supervised(pid: int) -> str:
    """Return the directory of the run that a process is the supervisor of; empty for any other process."""
    found = _SUPERVISOR.search(read_text(f"/proc/{pid}/cmdline"))
    return found.group(1) if found else ""


def _living_above(table: Mapping[int, Process], words: Mapping[int, str], process: Process, stack: str) -> str:
    """Return the name of the first program above a process that is no part of a run; empty when there is none.

    What only parts of a run are above, up to who takes over orphans, has lost what started it.
    """
    pid = process.parent
    while not _reaps(table, pid):
        if pid not in table:  # as of `docker exec`
            return "outside"
        line = words[pid]
        if not (is_of_a_run(table[pid].name, line) or line.startswith(f"{stack}/")):
            return table[pid].name
        pid = table[pid].parent
    return ""


def _reaps(table: Mapping[int, Process], pid: int) -> bool:
    """Whether a process takes over orphans: the first one, or one that does little else."""
    return pid == 1 or (pid in table and table[pid].name.startswith(_REAPERS))


def _home(pid: int) -> tuple[str, str]:
    """Return which numbering and which container a process is of; another one for a process that is just ending."""
    cgroup = read_text(f"/proc/{pid}/cgroup")
    found = _CONTAINER.search(cgroup)
    try:
        space = os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:  # another user's, whose numbers are taken for those of here
        space = os.readlink("/proc/self/ns/pid")
    return (space if cgroup else "gone"), found.group(1) if found else ""
