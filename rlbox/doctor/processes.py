"""Processes of this container or machine, and whether a living run owns them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlbox.amounts import duration_text
from rlbox.doctor.catalogue import make_finding
from rlbox.findings import Finding, join_and_count_rest
from rlbox.i18n import _
from rlbox.system.process_table import (
    Process,
    find_descendants_excluding_roots,
    find_process_owner_or_uid_or_empty,
    find_self_and_ancestors,
    probe_processes,
    read_cmdline_or_empty,
    read_environ_or_empty,
    read_text_or_empty,
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
    """A process of this machine or container, no zombie.

    `is_doctor`: it is this doctor, what started that, or what that started. `is_in_live_run`: a living run of rlbox
    owns it, of whatever data disk. `supervised_run` is the run whose supervisor it is, `ended_run` the one that it was
    started for, whose supervisor is gone. `has_living_starter`: it is below a living program that is none of a run.
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
    has_living_starter: bool = False
    is_orphan: bool = False
    runs_from_stack_venv: bool = False

    @property
    def is_unowned_run_or_stack_process(self) -> bool:
        """Whether nothing living owns it: of Ray, an engine, a launcher, or an orphan of the stack."""
        if self.is_doctor or self.is_in_live_run or self.has_living_starter:
            return False
        is_part = _is_run_process(self.name, self.command_line) or (self.is_orphan and self.runs_from_stack_venv)
        return bool(self.ended_run) or is_part


def _is_run_process(name: str, command_line: str) -> bool:
    return any(map(_OF_A_RUN.search, (name, command_line, command_line.partition(" ")[0].rpartition("/")[2])))


def check_live_runs_and_leftovers(processes: Sequence[ProcessInfo]) -> Iterator[Finding]:
    if runs := list(dict.fromkeys(process.supervised_run for process in processes if process.supervised_run)):
        yield make_finding("live-runs", level="note", seen=join_and_count_rest(runs), where="processes", stop=runs[0])
    stale = [process for process in processes if process.is_unowned_run_or_stack_process]
    seen = join_and_count_rest([_describe(process) for process in stale])
    if pids := " ".join(str(process.pid) for process in stale if process.is_own_user):
        yield make_finding("stale-processes", level="warning", seen=seen, pids=pids)
    elif stale:
        others = ", ".join(dict.fromkeys(process.owner for process in stale))
        yield make_finding("stale-processes-of-others", id="stale-processes", level="warning", seen=seen, others=others)


def _describe(process: ProcessInfo) -> str:
    run = f", of run {process.ended_run}" if process.ended_run else ""
    return f"{process.name} (pid {process.pid}, {process.owner}, {duration_text(process.age_s)} old{run})"


def list_processes_in_same_container(venv_of_stack_programs: str = VENV) -> tuple[ProcessInfo, ...]:
    """Return every process that shares this one's control group and process numbers.

    Those of containers, and of machines in namespaces, are not a host's business: their numbers are others there.
    """
    everything = probe_processes()
    me, up_s = os.getpid(), time.clock_gettime(time.CLOCK_BOOTTIME)
    home = _get_pid_namespace_and_container(me)
    table = {pid: process for pid, process in everything.items() if _get_pid_namespace_and_container(pid) == home}
    mine = find_self_and_ancestors(everything, me) | find_descendants_excluding_roots(everything, {me})
    command_lines = {pid: read_cmdline_or_empty(pid) for pid in table}
    supervisors = {pid: folder for pid in table if (folder := _find_supervised_run_dir(pid))}
    owned = supervisors.keys() | find_descendants_excluding_roots(table, set(supervisors))
    of_init = [process for process in table.values() if process.parent_pid == 1]
    main = min(of_init, key=lambda process: process.start_ticks, default=None)  # ids wrap round
    user = find_process_owner_or_uid_or_empty(me)

    def describe(process: Process) -> ProcessInfo:
        pid = process.pid
        folder = read_environ_or_empty(pid).get(FOLDER_MARK, "")
        owner = find_process_owner_or_uid_or_empty(pid)
        is_live = folder in supervisors.values()
        return ProcessInfo(
            pid=pid,
            name=process.name,
            command_line=command_lines[pid],
            owner=_("user {owner}").format(owner=owner or "unknown"),
            age_s=max(up_s - process.start_ticks / _TICKS, 0.0),
            is_own_user=owner == user,
            is_doctor=pid in mine,
            is_in_live_run=pid in owned or is_live,
            supervised_run=Path(supervisors.get(pid, "")).name,
            ended_run="" if is_live else Path(folder).name,
            has_living_starter=process == main
            or _is_below_other_program(table, command_lines, process, venv_of_stack_programs),
            is_orphan=process != main and _reaps(table, process.parent_pid),
            runs_from_stack_venv=command_lines[pid].startswith(f"{venv_of_stack_programs}/"),
        )

    living = [process for process in table.values() if not process.is_zombie]
    return tuple(describe(process) for process in living if process.pid != 1 or process.pid in supervisors)


def _find_supervised_run_dir(pid: int) -> str | None:
    found = _SUPERVISOR.search(read_text_or_empty(f"/proc/{pid}/cmdline"))
    return found.group(1) if found else None


def _is_below_other_program(
    table: Mapping[int, Process], command_lines: Mapping[int, str], process: Process, venv: str
) -> bool:
    pid = process.parent_pid
    while not _reaps(table, pid):
        if pid not in table:  # as of `docker exec`
            return True
        line = command_lines[pid]
        if not (_is_run_process(table[pid].name, line) or line.startswith(f"{venv}/")):
            return True
        pid = table[pid].parent_pid
    return False


def _reaps(table: Mapping[int, Process], pid: int) -> bool:
    """Whether a process takes over orphans: the first one, or one that does little else."""
    return pid == 1 or (pid in table and table[pid].name.startswith(_REAPERS))


def _get_pid_namespace_and_container(pid: int) -> tuple[str, str]:
    """Return which numbering and which container a process is of; another one for a process that is just ending."""
    cgroup = read_text_or_empty(f"/proc/{pid}/cgroup")
    container = _CONTAINER.search(cgroup)
    try:
        namespace = os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:  # another user's, whose numbers are taken for those of here
        namespace = os.readlink("/proc/self/ns/pid")
    return (namespace if cgroup else "gone"), container.group(1) if container else ""
