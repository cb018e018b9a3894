"""How far a build is, as its compilers and its build system tell, and why it failed, as its last words tell."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

from rlbox.amounts import duration_text
from rlbox.app import App
from rlbox.errors import NodeError, WorkFailed
from rlbox.foreign import toml_table
from rlbox.i18n import _
from rlbox.image.compile_env import (
    BUILD_MOUNT,
    BuildCapacity,
    BuildDirs,
    parse_build_backend,
    plan_build_environment,
    plan_wheel_build_command,
)
from rlbox.system.command import PIPE, STDOUT, ProcessHandle, run_command, start_command
from rlbox.system.limits import get_available_memory
from rlbox.system.progress import ProgressItem, show_progress
from rlbox.system.tail import read_last_bytes
from rlbox.target.compiled import Compile
from rlbox.target.target import Target
from rlbox.values import Command

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


UnitState = Literal["begun", "made", "kept", "left"]


@dataclass(frozen=True, kw_only=True)
class CompilationUnit:
    """A file that was compiled: `made` in `seconds`, `kept` from before, `left` out, or `begun`."""

    state: UnitState
    seconds: int
    file: str


@dataclass
class CompileProgress:
    """What was heard of a build's compilers so far; `total_units` is what the build system said, 0 before it did."""

    total_units: int = 0
    running: set[str] = field(default_factory=set)
    ended: dict[str, CompilationUnit] = field(default_factory=dict)

    def record(self, unit: CompilationUnit) -> None:
        """Take in one line of `units.log`."""
        if unit.state == "begun":
            self.running.add(unit.file)
        else:
            self.running.discard(unit.file)
            self.ended[unit.file] = unit

    def units_in_state(self, state: UnitState) -> list[CompilationUnit]:
        return [unit for unit in self.ended.values() if unit.state == state]

    def estimate_remaining_s(self, jobs: int) -> float | None:
        """Return about how many seconds are left, None before the number of files and the time of one are known."""
        made = self.units_in_state("made")
        if not self.total_units or not made:
            return None
        mean = sum(unit.seconds for unit in made) / len(made)
        return mean * max(self.total_units - len(self.ended), 0) / jobs


def parse_unit_log(lines: Iterable[str]) -> list[CompilationUnit]:
    """Return the rows of `units.log`; a line that is being written is left for later."""
    rows = [line.split("\t") for line in lines]
    return [
        CompilationUnit(state=cast("UnitState", row[0]), seconds=int(row[1]), file=row[2])
        for row in rows
        if len(row) == 3 and row[0] in get_args(UnitState) and row[1].isdigit()
    ]


def parse_ninja_step_count(ninja_log: str) -> int:
    """Return how many steps ninja said that there are, 0 where it did not."""
    found = [int(match[2]) for match in _COUNTED.finditer(ninja_log)]
    return found[-1] if found else 0


def find_missing_header(log: str) -> str | None:
    """Return the header that a compiler did not find, as its source names it (`cudnn.h`)."""
    found = _HEADER.search(log)
    return found[1] if found else None


class BuildFailure(NamedTuple):
    """Why a build failed, and what to do next."""

    reason: str
    next_step: str


def explain_build_failure(entry: Compile, log: str, header_folder: str = "") -> BuildFailure | None:
    """Return why a build failed, by the end of its log; None where that does not tell.

    Parameters
    ----------
    header_folder
        The folder, as the build sees it, of what it imports that has the header which a compiler did not find.
    """
    name = entry.name
    if _KILLED.search(log):
        return BuildFailure(
            f"the kernel ended a compiler of {name}: there was not enough memory",
            f"raise memory_gib of {name} (now {entry.memory_gib:g}): fewer run at a time then; what is made is kept",
        )
    if _NO_COMPILER.search(log):
        return BuildFailure(
            f"the build of {name} wants a CUDA compiler, and there is none",
            f'set cuda = "13.0" (that of the stack\'s torch) for {name} in [[stack.compile]]',
        )
    if header := find_missing_header(log):
        what = f"a compiler of {name} did not find the header {header}"
        if header_folder:
            step = f'set CPATH = "{header_folder}" in env of {name} in [[stack.compile]]: the header is there'
            return BuildFailure(what, step)
        step = f"add the Python package that has {header} to needs of {name}, or its apt package to packages"
        return BuildFailure(what, step)
    if found := _MISSING.search(log):
        what = f"the build of {name} imports {found[1]}, which is not there"
        return BuildFailure(what, f"add what brings {found[1]} to its needs")
    if _NETWORK.search(log):
        return BuildFailure(
            f"the build of {name} wants the network, which it does not have: all it is made from is in the lock",
            "find a setting of its build that downloads nothing (env), or put what it downloads into needs or packages",
        )
    return None


_LOOK_S = 0.5
_TAIL_BYTES = 65_536
_TAIL_LINES = 15
_MARKS = {"made": "✓", "kept": "=", "left": "="}
_WORDS = {"kept": "from before", "left": "left out"}


@dataclass(frozen=True, kw_only=True)
class BuiltWheel:
    """A wheel as its build left it, how long that took in s, and its units."""

    wheel: Path
    seconds: float
    units: tuple[CompilationUnit, ...]


def probe_build_capacity() -> BuildCapacity:
    return BuildCapacity(cores=len(os.sched_getaffinity(0)), memory_bytes=get_available_memory())


def should_create_user_namespace() -> bool:
    """Return whether namespaces need a user namespace around them, which whoever has no privilege can make.

    Raises
    ------
    NodeError
        This machine gives none, so that a build could reach the network.
    """
    said = ""
    for mapped in (True, False):
        user = ("--user", "--map-root-user") if mapped else ()
        tried = run_command(
            Command(argv=("unshare", *user, "--mount", "--pid", "--fork", "--net", "true"), timeout_s=60)
        )
        if tried.ok:
            return mapped
        said = said or tried.stderr.strip()
    raise NodeError(
        _("this machine gives a build no namespaces of its own, and so no place without network: {said}").format(
            said=said
        ),
        next_step=_(
            "compile on one that does (a virtual machine, a container with --privileged) and bring the "
            "wheel by rlbox fetch TARGET --export"
        ),
    )


def run_wheel_build(
    app: App, target: Target, entry: Compile, dirs: BuildDirs, python: str, jobs: int, log_path: Path
) -> BuiltWheel:
    """Build the wheel of the source in the box; what its compilers made stays, whatever becomes of it.

    Raises
    ------
    WorkFailed
        The build failed; why, as far as its last lines tell, and these.
    """
    box = Path(dirs.build_dir)
    source = box / "source" / entry.folder / "pyproject.toml"
    backend = parse_build_backend(toml_table(source.read_text("utf-8")) if source.is_file() else {})
    libraries = sorted(path.parent.name for path in Path(dirs.site_dir).glob("nvidia/*/include"))
    env = plan_build_environment(target, entry, jobs, libraries)
    programs = str(Path(__file__).with_name("programs"))
    command = plan_wheel_build_command(
        dirs,
        programs,
        (python, *backend),
        env,
        source_subdir=entry.folder,
        use_user_namespace=should_create_user_namespace(),
    )
    began = time.monotonic()
    units = CompileProgress()
    with open(log_path, "wb") as out, show_progress(app, in_bytes=False) as show:
        process = start_command(command, stdin=PIPE, stdout=out, stderr=STDOUT)
        try:
            code = _follow(process, units, box / "units.log", log_path, lambda unit: show(_row(unit, units, jobs)))
        finally:
            if process.stdin:
                process.stdin.close()  # ends whatever of it still runs
            process.wait()
    if code:
        raise _failed(entry, code, log_path, Path(dirs.site_dir))
    if entry.units and not (box / "linked").exists():
        raise WorkFailed(
            _(
                "the library of {entry} was linked by a program of another name than rlbox stands before, "
                "so that what units leaves out is undefined in it"
            ).format(entry=entry.name),
            where=str(log_path),
            next_step=_(
                "compile all of it (no units of {entry} in [[stack.compile]]), or have its build link with c++"
            ).format(entry=entry.name),
        )
    wheels = sorted((box / "out").glob("*.whl"))
    if len(wheels) != 1:
        raise WorkFailed(
            _("the build of {entry} left {count} wheels").format(entry=entry.name, count=len(wheels)),
            where=str(box / "out"),
        )
    return BuiltWheel(wheel=wheels[0], seconds=time.monotonic() - began, units=tuple(units.ended.values()))


def _follow(
    process: ProcessHandle, units: CompileProgress, told: Path, log: Path, show: Callable[[CompilationUnit], None]
) -> int:
    """Return the exit code of a build when it ended; each unit is shown as it begins and ends."""
    heard = 0
    while True:
        code = process.poll()
        data = told.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        units.total_units = (
            parse_ninja_step_count(read_last_bytes(log, _TAIL_BYTES).decode("utf-8", "replace")) or units.total_units
        )
        for unit in parse_unit_log(whole[heard:].decode("utf-8", "replace").splitlines()):
            units.record(unit)
            show(unit)
        heard = len(whole)
        if code is not None:
            return code
        time.sleep(_LOOK_S)


def _row(unit: CompilationUnit, units: CompileProgress, jobs: int) -> ProgressItem:
    told = "" if unit.state == "begun" else duration_text(unit.seconds) if unit.state == "made" else _WORDS[unit.state]
    if unit.state != "begun":
        told += f"  {len(units.ended)} of {units.total_units}" if units.total_units else f"  {len(units.ended)}"
        left = units.estimate_remaining_s(jobs)
        told += f", about {duration_text(left)} left" if left else ""
    return ProgressItem(
        key=unit.file, title=unit.file.rpartition("/")[2], mark=_MARKS.get(unit.state, ""), status_text=told
    )


def _header_folder(site: Path, header: str | None) -> str:
    """Return the folder of what a build imports that has a header, as the build sees it; empty: none has it."""
    if not header or ".." in header or header.startswith("/"):
        return ""
    path = min(site.rglob(header), default=None)
    return f"{BUILD_MOUNT}/site/{path.relative_to(site).as_posix().removesuffix(header)}".rstrip("/") if path else ""


def _failed(entry: Compile, code: int, log: Path, site: Path) -> WorkFailed:
    text = read_last_bytes(log, _TAIL_BYTES).decode("utf-8", "replace")
    failure = explain_build_failure(entry, text, _header_folder(site, find_missing_header(text)))
    what, next_step = failure or BuildFailure("", "")
    tail = "".join(f"\n  | {line}" for line in text.strip().splitlines()[-_TAIL_LINES:])
    return WorkFailed(
        _("{what}{tail}").format(
            what=what or _("{entry} cannot be compiled (exit code {code})").format(entry=entry.name, code=code),
            tail=tail,
        ),
        where=str(log),
        next_step=next_step or _("read its log; what was compiled is kept, and the same command goes on"),
    )
