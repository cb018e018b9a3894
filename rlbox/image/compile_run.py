"""Run the build of a wheel, show what its compilers do, and say why it failed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rlbox.amounts import duration_text
from rlbox.app import App
from rlbox.errors import NodeError, WorkFailed
from rlbox.foreign import decode_toml
from rlbox.i18n import _
from rlbox.image.compile_env import (
    BuildDirs,
    parse_build_backend,
    plan_build_environment,
    plan_wheel_build_command,
)
from rlbox.system.command import PIPE, STDOUT, ProcessHandle, run_command, start_command
from rlbox.system.progress import ProgressItem, show_progress
from rlbox.system.tail import read_last_whole_lines
from rlbox.target.compiled import Compile
from rlbox.target.target import Target
from rlbox.values import Command


class BuildFailure(NamedTuple):
    """Why a build failed, and what to do next."""

    reason: str
    next_step: str


# What the end of a log says of the cause, the first that matches; {found} is what the pattern's group has.
_FAILURES = (
    (
        re.compile(
            r"Killed signal terminated program|^Killed$|: Killed$|virtual memory exhausted|Cannot allocate memory", re.M
        ),
        "the kernel ended a compiler of {name}: there was not enough memory",
        "raise memory_gib of {name} (now {memory_gib:g}): fewer run at a time then; what is made is kept",
    ),
    (
        re.compile(
            r"nvcc: (?:command )?not found|CUDA_HOME environment variable is not set"
            r"|No such file or directory: '[^']*nvcc'|Failed to find nvcc|No CMAKE_CUDA_COMPILER could be found"
        ),
        "the build of {name} wants a CUDA compiler, and there is none",
        'set cuda = "13.0" (that of the stack\'s torch) for {name} in [[stack.compile]]',
    ),
    (
        re.compile(r"fatal error: '?([^\s':]+)'?(?:: No such file or directory| file not found)"),
        "a compiler of {name} did not find the header {found}",
        "add the Python package that has {found} to needs of {name}, or its apt package to packages",
    ),
    (
        re.compile(r"ModuleNotFoundError: No module named '([A-Za-z0-9_.]+)'"),
        "the build of {name} imports {found}, which is not there",
        "add what brings {found} to its needs",
    ),
    (
        re.compile(
            r"Temporary failure in name resolution|Name or service not known|Network is unreachable"
            r"|Could not resolve host|nodename nor servname|NewConnectionError|failed to lookup address"
            r"|No address associated with hostname"
        ),
        "the build of {name} wants the network, which it does not have: all it is made from is in the lock",
        "find a setting of its build that downloads nothing (env), or put what it downloads into needs or packages",
    ),
)


def explain_build_failure(entry: Compile, log: str) -> BuildFailure | None:
    """Return why a build failed, by the end of its log; None where that does not tell."""
    for pattern, reason, next_step in _FAILURES:
        if match := pattern.search(log):
            values = {
                "name": entry.name,
                "memory_gib": entry.memory_gib,
                "found": match[1] if pattern.groups else "",
            }
            return BuildFailure(reason.format(**values), next_step.format(**values))
    return None


_POLL_S = 0.5
_TAIL_BYTES = 65_536
_TAIL_LINES = 15


def probe_unshare_prefer_user_namespace() -> bool:
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
        _("this machine does not allow namespaces for a build, so the build cannot run without network: {said}").format(
            said=said
        ),
        next_step=_(
            "compile on one that does (a virtual machine, a container with --privileged) and bring the "
            "wheel by rlbox fetch TARGET --export"
        ),
    )


def build_wheel_in_namespaces(
    app: App, target: Target, entry: Compile, dirs: BuildDirs, interpreter_path: str, jobs: int, log_path: Path
) -> Path:
    """Build the wheel of the source in the box and return it; what its compilers made stays, whatever becomes of it.

    Raises
    ------
    WorkFailed
        The build failed; why, as far as its last lines tell, and these.
    """
    box = Path(dirs.build_dir)
    source = box / "source" / entry.folder / "pyproject.toml"
    backend = parse_build_backend(decode_toml(source.read_text("utf-8")) if source.is_file() else {})
    libraries = sorted(path.parent.name for path in Path(dirs.site_dir).glob("nvidia/*/include"))
    command = plan_wheel_build_command(
        dirs,
        interpreter_path,
        backend,
        plan_build_environment(target, entry, jobs, libraries),
        source_subdir=entry.folder,
        create_user_namespace=probe_unshare_prefer_user_namespace(),
    )
    with open(log_path, "wb") as out, show_progress(app, in_bytes=False) as show:
        process = start_command(command, stdin=PIPE, stdout=out, stderr=STDOUT)
        try:
            code = _follow(process, box / "units.log", show)
        finally:
            if process.stdin:
                process.stdin.close()  # ends whatever of it still runs
            process.wait()
    if code:
        raise _failed(entry, code, log_path)
    if entry.units and not (box / "linked").exists():
        raise WorkFailed(
            _(
                "the library of {entry} was linked by a linker that rlbox does not intercept, so symbols of "
                "the units left out are undefined in it"
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
    return wheels[0]


def _follow(process: ProcessHandle, unit_log: Path, show: Callable[[ProgressItem], None]) -> int:
    """Return the exit code of a build when it ended; each file is shown as its compiler begins and ends."""
    shown = 0
    while True:
        code = process.poll()
        lines = unit_log.read_text("utf-8", "replace").split("\n")[:-1]  # the last one may be half written
        for line in lines[shown:]:
            show(_format_unit(line))
        shown = len(lines)
        if code is not None:
            return code
        time.sleep(_POLL_S)


def _format_unit(line: str) -> ProgressItem:
    """Return a line of `units.log` (state, seconds, file) as a line of progress; `launch.sh` writes it."""
    state, seconds, file = line.split("\t", 2)
    mark, status = {
        "begun": ("", ""),
        "made": ("✓", duration_text(int(seconds))),
        "kept": ("=", "from before"),
        "left": ("=", "left out"),
    }[state]
    return ProgressItem(key=file, title=file.rpartition("/")[2], mark=mark, status_text=status)


def _failed(entry: Compile, code: int, log: Path) -> WorkFailed:
    text = read_last_whole_lines(log, _TAIL_BYTES).decode("utf-8", "replace")
    failure = explain_build_failure(entry, text)
    tail = "".join(f"\n  | {line}" for line in text.strip().splitlines()[-_TAIL_LINES:])
    reason = failure.reason if failure else _("{entry} cannot be compiled (exit code {code})")
    return WorkFailed(
        _("{what}{tail}").format(what=reason if failure else reason.format(entry=entry.name, code=code), tail=tail),
        where=str(log),
        next_step=failure.next_step
        if failure
        else _("read its log; compiled packages are kept, and the same command continues"),
    )
