"""How far a build is, as its compilers and its build system tell, and why it failed, as its last words tell."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from rlbox.target.compiled import Compile

_COUNTED = re.compile(r"^\[(\d+)/(\d+)\]", re.MULTILINE)
_NETWORK = re.compile(
    r"Temporary failure in name resolution|Name or service not known|Network is unreachable|Could not resolve host"
    r"|nodename nor servname|NewConnectionError|failed to lookup address|No address associated with hostname"
)
_KILLED = re.compile(
    r"Killed signal terminated program|^Killed$|: Killed$|virtual memory exhausted|Cannot allocate memory", re.M
)
_NO_COMPILER = re.compile(
    r"nvcc: (?:command )?not found|CUDA_HOME environment variable is not set|No such file or directory: '[^']*nvcc'"
    r"|Failed to find nvcc|No CMAKE_CUDA_COMPILER could be found"
)
_HEADER = re.compile(r"fatal error: '?([^\s':]+)'?(?:: No such file or directory| file not found)")
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([A-Za-z0-9_.]+)'")


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A file that was compiled: `made` in `seconds`, `kept` from before, `left` out, or `begun`."""

    state: str
    seconds: int
    file: str


@dataclass
class Units:
    """What was heard of a build's compilers so far; `total` is what the build system said, 0 before it did."""

    total: int = 0
    running: set[str] = field(default_factory=set)
    ended: dict[str, Unit] = field(default_factory=dict)

    def hear(self, unit: Unit) -> None:
        """Take in one line of `units.log`."""
        if unit.state == "begun":
            self.running.add(unit.file)
        else:
            self.running.discard(unit.file)
            self.ended[unit.file] = unit

    def of(self, state: str) -> list[Unit]:
        """Return the files of one state."""
        return [unit for unit in self.ended.values() if unit.state == state]

    def left_s(self, jobs: int) -> float | None:
        """Return about how many seconds are left, None before the number of files and the time of one are known."""
        made = self.of("made")
        if not self.total or not made:
            return None
        mean = sum(unit.seconds for unit in made) / len(made)
        return mean * max(self.total - len(self.ended), 0) / jobs


def parse_units(lines: Iterable[str]) -> list[Unit]:
    """Return the rows of `units.log`; a line that is being written is left for later."""
    rows = [line.split("\t") for line in lines]
    return [Unit(state=row[0], seconds=int(row[1]), file=row[2]) for row in rows if len(row) == 3 and row[1].isdigit()]


def counted(log: str) -> int:
    """Return how many steps ninja said that there are, 0 where it did not."""
    found = [int(match[2]) for match in _COUNTED.finditer(log)]
    return found[-1] if found else 0


def missing_header(log: str) -> str:
    """Return the header that a compiler did not find, as its source names it (`cudnn.h`); empty: none is missing."""
    found = _HEADER.search(log)
    return found[1] if found else ""


def explain(entry: Compile, log: str, header_folder: str = "") -> tuple[str, str]:
    """Return why a build failed and what to do next, by the end of its log; empty texts where that does not tell.

    Parameters
    ----------
    header_folder
        The folder, as the build sees it, of what it imports that has the header which a compiler did not find.
    """
    name = entry.name
    if _KILLED.search(log):
        return (
            f"the kernel ended a compiler of {name}: there was not enough memory",
            f"raise memory_gib of {name} (now {entry.memory_gib:g}): fewer run at a time then; what is made is kept",
        )
    if _NO_COMPILER.search(log):
        return (
            f"the build of {name} wants a CUDA compiler, and there is none",
            f'set cuda = "13.0" (that of the stack\'s torch) for {name} in [[stack.compile]]',
        )
    if header := missing_header(log):
        what = f"a compiler of {name} did not find the header {header}"
        if header_folder:
            return what, f'set CPATH = "{header_folder}" in env of {name} in [[stack.compile]]: the header is there'
        return what, f"add the Python package that has {header} to needs of {name}, or its apt package to packages"
    if found := _MISSING.search(log):
        return f"the build of {name} imports {found[1]}, which is not there", f"add what brings {found[1]} to its needs"
    if _NETWORK.search(log):
        return (
            f"the build of {name} wants the network, which it does not have: all it is made from is in the lock",
            "find a setting of its build that downloads nothing (env), or put what it downloads into needs or packages",
        )
    return "", ""
