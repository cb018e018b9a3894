"""Processes of this container or machine, and whether a living run owns them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlbox.amounts import duration_text
from rlbox.findings import Finding, listed
from rlbox.i18n import _
from rlbox.system.process_table import (
    Process,
    find_descendants_excluding_roots,
    find_process_owner,
    find_self_and_ancestors,
    probe_command_line,
    probe_processes,
    read_environment,
    read_text,
)
from rlbox.system.run_processes import FOLDER_MARK
from rlbox.values import VENV

# Programs of a run, by name or command line; Ray's workers and engines set such titles.
_OF_A_RUN = re.compile(
    r"^(raylet|gcs_server|ray::\S*|VLLM::\S*|sglang::\S*|slime\S*)$"
    r"|/ray/core/src/ray/(raylet|gcs)/|/ray/(_private|dashboard|autoscaler)/\S+\.py|\bray::\w"
    r"|\bvllm(\.entrypoints\b| serve\b)|\bsglang(\.launch_server|_router)\b|/torchrun\b"
    r"|\btorch\.distributed\.(run|launch)\b|\bdeepspeed\b|\bsandbox_fusion\b"
)
_SUPERVISOR = re.compile(r"\0-m\0rlbox\.supervise\0(?:--watchdog\0)?([^\0]+)")
# The id that container engines name their control groups after.
_CONTAINER = re.compile(r"\b([0-9a-f]{64})\b")
_REAPERS = ("systemd", "init", "tini", "docker-init", "dumb-init", "catatonit", "containerd-shim", "conmon")
"""Who takes over what has lost its parent, beside the first process: a program below them alone is an orphan."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class ProcessInfo:
    """A process of this machine or container.

    Attributes
    ----------
    is_doctor
        It is this doctor, what started that, or what that started.
    is_in_live_run
        A living run of rlbox owns it, of whatever data disk.
    supervised_run
        The run that it is the supervisor of.
    ended_run
        The run that it was started for, whose supervisor is gone.
    is_orphan
        What started it ended before it.
    living_starter_name
        The living program that it is below, none of a run: a shell, a test, a script.
    """

    pid: int
    name: str
    command_line: str
    owner: str
    age_s: float
    is_own_user: bool = True
    is_doctor: bool = False
    is_in_live_run: bool = False
    supervised_run: str = ""
    ended_run: str = ""
    living_starter_name: str = ""
    is_orphan: bool = False
    is_zombie: bool = False
    runs_from_stack_venv: bool = False

    @property
    def is_left_over(self) -> bool:
        """Whether nothing living owns it: of Ray, an engine, a launcher, or an orphan of the stack."""
        if self.is_doctor or self.is_in_live_run or self.is_zombie or self.living_starter_name:
            return False
        is_part = is_run_process(self.name, self.command_line) or (self.is_orphan and self.runs_from_stack_venv)
        return bool(self.ended_run) or is_part


def is_run_process(name: str, command_line: str) -> bool:
    """Return whether a process is a part of Ray, an engine or a launcher, by its name and command line."""
    return any(map(_OF_A_RUN.search, (name, command_line, command_line.partition(" ")[0].rpartition("/")[2])))


def check_live_runs_and_leftovers(processes: Sequence[ProcessInfo]) -> Iterator[Finding]:
    """Yield which runs go on, and what earlier runs left behind, with owners; nothing is ended."""
    if runs := list(dict.fromkeys(process.supervised_run for process in processes if process.supervised_run)):
        yield make_live_runs_finding(runs, place_phrase="here", finding_where="processes", stop_args=runs[0])
    if stale := [process for process in processes if process.is_left_over]:
        yield Finding(
            id="stale-processes", title=_("processes of an earlier run are still there"), level="warning",
            seen=listed([_describe(process) for process in stale]), where="processes", remedy=_make_remedy(stale),
            breaks=("port-taken", "gpu-busy", "ray-port-conflict", "ray-env-inherited"),
            covers=("stale-processes-hold-port",),
        )  # fmt: skip


def _describe(process: ProcessInfo) -> str:
    run = f", of run {process.ended_run}" if process.ended_run else ""
    return f"{process.name} (pid {process.pid}, {process.owner}, {duration_text(process.age_s)} old{run})"


def _make_remedy(stale: Sequence[ProcessInfo]) -> str:
    """Return what to do: one's own may be ended, others' are for others to end."""
    pids = " ".join(str(process.pid) for process in stale if process.is_own_user)
    others = ", ".join(dict.fromkeys(process.owner for process in stale if not process.is_own_user))
    if not pids:
        return _("ask {others} to end them, if nothing needs them").format(others=others)
    ends = _("if nothing of yours needs them, end them: kill {pids}").format(pids=pids)
    return _("{ends}; ask {others} to end the others").format(ends=ends, others=others) if others else ends


def make_live_runs_finding(runs: Sequence[str], *, place_phrase: str, finding_where: str, stop_args: str) -> Finding:
    """Return the note that runs go on at a place; `stop_args` are the words after `rlbox stop` that end the first."""
    return Finding(
        id="live-runs",
        title=_("runs of rlbox go on {place}").format(place=place_phrase),
        level="note",
        seen=listed(runs),
        where=finding_where,
        remedy=_("leave it alone, or end it with: rlbox stop {stop}").format(stop=stop_args),
    )


def list_processes_in_same_container(venv_of_stack_programs: str = VENV) -> tuple[ProcessInfo, ...]:
    """Return every process that shares this one's control group and process numbers.

    Those of containers, and of machines in namespaces, are not a host's business: their numbers are others there.

    Parameters
    ----------
    venv_of_stack_programs
        Folder of the stack's environment: its interpreter is known by that path.
    """
    everything = probe_processes()
    me, up_s = os.getpid(), time.clock_gettime(time.CLOCK_BOOTTIME)
    home = _home(me)
    table = {pid: process for pid, process in everything.items() if _home(pid) == home}
    mine = find_self_and_ancestors(everything, me) | find_descendants_excluding_roots(everything, {me})
    words = {pid: probe_command_line(pid) for pid in table}
    supervisors = {pid: folder for pid in table if (folder := _supervised(pid))}
    owned = supervisors.keys() | find_descendants_excluding_roots(table, set(supervisors))
    first = min(
        (p for p in table.values() if p.parent_pid == 1), key=lambda p: p.start_ticks, default=None
    )  # ids wrap round
    main = first.pid if first else 0
    user = find_process_owner(me)

    def describe(process: Process) -> ProcessInfo:
        pid = process.pid
        folder = read_environment(pid).get(FOLDER_MARK, "")
        owner = find_process_owner(pid)
        return ProcessInfo(
            pid=pid,
            name=process.name,
            command_line=words[pid],
            owner=_("user {owner}").format(owner=owner or "unknown"),
            age_s=max(up_s - process.start_ticks / _TICKS, 0.0),
            is_own_user=owner == user,
            is_doctor=pid in mine,
            is_in_live_run=pid in owned or folder in supervisors.values(),
            supervised_run=Path(supervisors[pid]).name if pid in supervisors else "",
            ended_run=Path(folder).name if folder and folder not in supervisors.values() else "",
            living_starter_name="container"
            if pid == main
            else _living_above(table, words, process, venv_of_stack_programs),
            is_orphan=pid != main and _reaps(table, process.parent_pid),
            is_zombie=process.is_zombie,
            runs_from_stack_venv=words[pid].startswith(f"{venv_of_stack_programs}/"),
        )

    return tuple(describe(process) for pid, process in table.items() if pid != 1 or pid in supervisors)


def _supervised(pid: int) -> str:
    """Return the directory of the run that a process is the supervisor of; empty for any other process."""
    found = _SUPERVISOR.search(read_text(f"/proc/{pid}/cmdline"))
    return found.group(1) if found else ""


def _living_above(table: Mapping[int, Process], words: Mapping[int, str], process: Process, stack: str) -> str:
    """Return the name of the first program above a process that is no part of a run; empty when there is none.

    What only parts of a run are above, up to who takes over orphans, has lost what started it.
    """
    pid = process.parent_pid
    while not _reaps(table, pid):
        if pid not in table:  # as of `docker exec`
            return "outside"
        line = words[pid]
        if not (is_run_process(table[pid].name, line) or line.startswith(f"{stack}/")):
            return table[pid].name
        pid = table[pid].parent_pid
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
