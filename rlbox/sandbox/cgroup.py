"""A control group for the programs of a request, where one can be made: it counts their time, and bounds their memory.

It makes limits exact and is no wall: without it, processes are measured every 20 ms. Versions 1 and 2, and machines
that have both. Sources: Linux cgroups(7); Documentation/admin-guide/{cgroup-v2.rst,cgroup-v1/}.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from rlbox.sandbox.plan import MissingReason
from rlbox.system.limits import PROCS_FILE, find_own_cgroups
from rlbox.system.process_table import read_text

PREFIX = "rlbox-sandbox-"
_FILES = {
    ("", "cpu"): "cpu.stat",
    ("", "memory"): "memory.max",
    ("memory", "memory"): "memory.limit_in_bytes",
    ("cpuacct", "cpu"): "cpuacct.usage",
}
"""Hierarchy (empty: version 2) and resource to the file that shows that a group there has this resource."""
_HIERARCHIES = ("", "memory", "cpuacct")
_RESOURCES = ("cpu", "memory")


class ProgramCgroup:
    """A group for the programs of one request after the other, in each hierarchy that it needs."""

    def __init__(self, name: str) -> None:
        self._files: dict[str, tuple[str, Path]] = {}  # resource to hierarchy and file
        self._folders: list[Path] = []
        self._error = "no controller for a group of its own"
        self._cpu_s_before, self._kills_before = 0.0, 0
        for hierarchy, parent in find_own_cgroups(_HIERARCHIES):
            resources = [name for name in _RESOURCES if (hierarchy, name) in _FILES and name not in self._files]
            try:
                self._make(hierarchy, parent / name, resources)
            except OSError as error:
                self._error = str(error)

    def start_request(self, memory_bytes: int) -> None:
        """Set the limit of a request and begin its counts; nothing of the one before is in the group any more."""
        if "memory" in self._files:
            try:
                self._files["memory"][1].write_text(str(memory_bytes))
            except OSError as error:
                self._error = str(error)
                del self._files["memory"]  # it has no limit
        self._cpu_s_before, self._kills_before = self._read_total_cpu_s(), self._count_kills()

    def _make(self, hierarchy: str, folder: Path, wanted: Iterable[str]) -> None:
        if not wanted:
            return
        if not hierarchy:
            with contextlib.suppress(OSError):  # refused where processes are, but at the root
                (folder.parent / "cgroup.subtree_control").write_text("+memory")
        folder.mkdir()
        self._folders.append(folder)
        for resource in wanted:
            if (file := folder / _FILES[hierarchy, resource]).exists():
                self._files[resource] = hierarchy, file

    def enter(self) -> MissingReason | None:
        """Put this process into it; return what it does not cover, or why this failed."""
        try:
            for folder in self._folders:
                (folder / PROCS_FILE).write_text("0")
        except OSError as error:
            return f"the kernel lets nothing enter it: {error}"
        lacking = [resource for resource in _RESOURCES if resource not in self._files]
        return f"{', '.join(lacking)}: {self._error}" if lacking else None

    def bounds_memory(self) -> bool:
        return "memory" in self._files

    def read_cpu_s(self) -> float:
        """Return the seconds of processor time of all that was in it for this request; 0 where nobody counts."""
        return self._read_total_cpu_s() - self._cpu_s_before

    def has_run_out_of_memory(self) -> bool:
        return self._count_kills() > self._kills_before

    def remove_if_empty(self) -> None:
        for folder in self._folders:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _read_total_cpu_s(self) -> float:
        if "cpu" not in self._files:
            return 0.0
        hierarchy, file = self._files["cpu"]
        if hierarchy:
            return int(read_text(file) or 0) / 1e9
        return _read_field(file, "usage_usec") / 1e6

    def _count_kills(self) -> int:
        if "memory" not in self._files:
            return 0
        hierarchy, file = self._files["memory"]
        return _read_field(file.parent / ("memory.oom_control" if hierarchy else "memory.events"), "oom_kill")


def remove_empty_sandbox_cgroups(suffix_pattern: str) -> None:
    """Remove the empty groups of this name that killed workers left; the kernel keeps one that anything is in."""
    for _, parent in find_own_cgroups(_HIERARCHIES):
        for folder in parent.glob(PREFIX + suffix_pattern):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _read_field(file: Path, name: str) -> int:
    rows = (row.split() for row in read_text(file).splitlines())
    return next((int(row[1]) for row in rows if row[0] == name), 0)
