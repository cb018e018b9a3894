"""A control group for the programs of a request, where one can be made: it counts their time, and bounds their memory.

It makes limits exact and is no wall: without it, processes are measured every 20 ms. Versions 1 and 2, and machines
that have both. Sources: Linux cgroups(7); Documentation/admin-guide/{cgroup-v2.rst,cgroup-v1/}.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from rlbox.system.limits import PROCS_FILE, find_own_cgroups, parse_name_number_lines
from rlbox.system.process_table import read_text_or_empty

_HIERARCHIES = ("", "memory", "cpuacct")
"""The first is version 2."""


class ReusedMemoryCpuCgroup:
    """A group for the programs of one request after the other, in each hierarchy that needs one; none if not wanted."""

    def __init__(self, name: str, *, is_wanted: bool) -> None:
        self._folders: list[Path] = []
        self._error = "no controller for a group of its own"
        self._cpu_s_before, self._kills_before = 0.0, 0
        for hierarchy, parent in find_own_cgroups(_HIERARCHIES if is_wanted else ()):
            try:
                if not hierarchy:
                    with contextlib.suppress(OSError):  # refused where processes are, but at the root
                        (parent / "cgroup.subtree_control").write_text("+memory")
                (parent / name).mkdir()
                self._folders.append(parent / name)
            except OSError as error:
                self._error = str(error)
        self._cpu_file = self._find_file("cpu.stat", "cpuacct.usage")
        self._memory_file = self._find_file("memory.max", "memory.limit_in_bytes")

    def _find_file(self, *names: str) -> Path | None:
        paths = (folder / name for name in names for folder in self._folders)
        return next((path for path in paths if path.exists()), None)

    def start_request(self, memory_bytes: int) -> None:
        """Set the limit of a request and begin its counts; nothing of the one before is in the group any more."""
        if self._memory_file:
            try:
                self._memory_file.write_text(str(memory_bytes))
            except OSError as error:
                self._memory_file, self._error = None, str(error)
        self._cpu_s_before, self._kills_before = self._read_total_cpu_s(), self._count_kills()

    def enter_and_explain_missing_limits(self) -> str:
        """Put this process into it; return what it does not cover, or why this failed, or an empty text."""
        try:
            for folder in self._folders:
                (folder / PROCS_FILE).write_text("0")
        except OSError as error:
            return f"the kernel lets nothing enter it: {error}"
        files = {"cpu": self._cpu_file, "memory": self._memory_file}
        lacking = [resource for resource, file in files.items() if not file]
        return f"{', '.join(lacking)}: {self._error}" if lacking else ""

    def can_bound_memory(self) -> bool:
        return self._memory_file is not None

    def read_request_cpu_s(self) -> float:
        """Return the seconds of processor time of all that was in it for this request; 0 where nobody counts."""
        return self._read_total_cpu_s() - self._cpu_s_before

    def has_run_out_of_memory(self) -> bool:
        return self._count_kills() > self._kills_before

    def _read_total_cpu_s(self) -> float:
        if not self._cpu_file:
            return 0.0
        if self._cpu_file.name == "cpu.stat":
            return parse_name_number_lines(read_text_or_empty(self._cpu_file)).get("usage_usec", 0) / 1e6
        return int(read_text_or_empty(self._cpu_file) or 0) / 1e9

    def _count_kills(self) -> int:
        if not self._memory_file:
            return 0
        name = "memory.events" if self._memory_file.name == "memory.max" else "memory.oom_control"
        return parse_name_number_lines(read_text_or_empty(self._memory_file.parent / name)).get("oom_kill", 0)


def format_cgroup_name(server_pid: int, worker_pid: int) -> str:
    return f"rlbox-sandbox-{server_pid}-{worker_pid}"


def remove_cgroup_if_empty(name: str) -> None:
    """Remove the groups of this name; the kernel keeps one that anything is in."""
    for _, parent in find_own_cgroups(_HIERARCHIES):
        with contextlib.suppress(OSError):
            (parent / name).rmdir()
