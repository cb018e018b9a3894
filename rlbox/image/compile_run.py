"""Run a build in its namespaces, tell how far it is, and say why it failed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlbox.amounts import duration_text
from rlbox.app import App
from rlbox.errors import NodeError, WorkFailed
from rlbox.foreign import toml_table
from rlbox.i18n import _
from rlbox.image.compile_plan import BOX, BuildFolders, BuildRoom, plan_build, plan_env, source_backend
from rlbox.image.compile_progress import Unit, Units, counted, explain, missing_header, parse_units
from rlbox.system.command import PIPE, STDOUT, ProcessHandle, run_command, start_command
from rlbox.system.limits import available_memory
from rlbox.system.progress import ProgressItem, show_progress
from rlbox.system.tail import read_last_bytes
from rlbox.target.compiled import Compile
from rlbox.target.target import Target
from rlbox.values import Command

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
    units: tuple[Unit, ...]


def probe_room() -> BuildRoom:
    """Return the cores and the memory that a build can have here."""
    return BuildRoom(cores=len(os.sched_getaffinity(0)), memory=available_memory())


def probe_spaces() -> bool:
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


def run_build(
    app: App, target: Target, entry: Compile, folders: BuildFolders, python: str, jobs: int, log: Path
) -> BuiltWheel:
    """Build the wheel of the source in the box; what its compilers made stays, whatever becomes of it.

    Raises
    ------
    WorkFailed
        The build failed; why, as far as its last lines tell, and these.
    """
    box = Path(folders.box)
    source = box / "source" / entry.folder / "pyproject.toml"
    backend = source_backend(toml_table(source.read_text("utf-8")) if source.is_file() else {})
    libraries = sorted(path.parent.name for path in Path(folders.site).glob("nvidia/*/include"))
    env = plan_env(target, entry, jobs, libraries)
    programs = str(Path(__file__).with_name("programs"))
    command = plan_build(folders, programs, (python, *backend), env, source=entry.folder, mapped=probe_spaces())
    began = time.monotonic()
    units = Units()
    with open(log, "wb") as out, show_progress(app, in_bytes=False) as show:
        process = start_command(command, stdin=PIPE, stdout=out, stderr=STDOUT)
        try:
            code = _follow(process, units, box / "units.log", log, lambda unit: show(_row(unit, units, jobs)))
        finally:
            if process.stdin:
                process.stdin.close()  # ends whatever of it still runs
            process.wait()
    if code:
        raise _failed(entry, code, log, Path(folders.site))
    if entry.units and not (box / "linked").exists():
        raise WorkFailed(
            _(
                "the library of {entry} was linked by a program of another name than rlbox stands before, "
                "so that what units leaves out is undefined in it"
            ).format(entry=entry.name),
            where=str(log),
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


def _follow(process: ProcessHandle, units: Units, told: Path, log: Path, show: Callable[[Unit], None]) -> int:
    """Return the exit code of a build when it ended; each unit is shown as it begins and ends."""
    heard = 0
    while True:
        code = process.poll()
        data = told.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        units.total = counted(read_last_bytes(log, _TAIL_BYTES).decode("utf-8", "replace")) or units.total
        for unit in parse_units(whole[heard:].decode("utf-8", "replace").splitlines()):
            units.hear(unit)
            show(unit)
        heard = len(whole)
        if code is not None:
            return code
        time.sleep(_LOOK_S)


def _row(unit: Unit, units: Units, jobs: int) -> ProgressItem:
    told = "" if unit.state == "begun" else duration_text(unit.seconds) if unit.state == "made" else _WORDS[unit.state]
    if unit.state != "begun":
        told += f"  {len(units.ended)} of {units.total}" if units.total else f"  {len(units.ended)}"
        left = units.left_s(jobs)
        told += f", about {duration_text(left)} left" if left else ""
    return ProgressItem(key=unit.file, title=unit.file.rpartition("/")[2], mark=_MARKS.get(unit.state, ""), told=told)


def _header_folder(site: Path, header: str) -> str:
    """Return the folder of what a build imports that has a header, as the build sees it; empty: none has it."""
    found = min(site.rglob(header), default=None) if header and ".." not in header and header[0] != "/" else None
    return f"{BOX}/site/{found.relative_to(site).as_posix().removesuffix(header)}".rstrip("/") if found else ""


def _failed(entry: Compile, code: int, log: Path, site: Path) -> WorkFailed:
    text = read_last_bytes(log, _TAIL_BYTES).decode("utf-8", "replace")
    what, next_step = explain(entry, text, _header_folder(site, missing_header(text)))
    tail = "".join(f"\n  | {line}" for line in text.strip().splitlines()[-_TAIL_LINES:])
    return WorkFailed(
        _("{what}{tail}").format(
            what=what or _("{entry} cannot be compiled (exit code {code})").format(entry=entry.name, code=code),
            tail=tail,
        ),
        where=str(log),
        next_step=next_step or _("read its log; what was compiled is kept, and the same command goes on"),
    )
